"""The table of edits: each on the lines of a program that it is for, and where the values of these lines come from."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

import pytest

from whystall._inputs import known_rules
from whystall.remedies.edits import Edit, applied, edits, proposals
from whystall.remedies.program import Program, patch


def named(name: str) -> Edit:
    return next(one for one in edits() if one.name == name)


def changed(name: str, text: str, *, cores: int = 4, on_device: bool = False) -> str | None:
    """The one file of a program after an edit."""
    program = Program({"t.py": text.encode()}, ("python", "t.py"), cores=cores, on_device=on_device)
    found = applied(named(name), program)
    return None if found is None else found.files["t.py"].decode()


def test_every_edit_is_for_causes_that_exist() -> None:
    assert {cause for edit in edits() for cause in edit.causes} <= known_rules().keys()
    assert len({edit.name for edit in edits()}) == len(edits())


ROWS = (
    "import torch\n\nclass Rows(Dataset):\n    def __len__(self): return 3\n    def __getitem__(self, i):\n        {}\n"
)

FIRST = "import torch  # and not lightning\n"

EXAMPLES = [
    (
        "kept-samples",
        ROWS.format("return torch.tensor(self.df.iloc[i])"),
        ROWS.format("return torch.tensor(self.df.iloc[i])")
        .replace("import torch", "import torch\nimport functools")
        .replace("    def __getitem__", "    @functools.cache\n    def __getitem__"),
    ),
    ("workers", "DataLoader(d)", "DataLoader(d, num_workers=2, persistent_workers=True)"),
    (
        "workers",
        "TrainingArguments()",
        "TrainingArguments(dataloader_num_workers=2, dataloader_persistent_workers=True)",
    ),
    ("persistent-workers", "DataLoader(d, num_workers=3)", "DataLoader(d, num_workers=3, persistent_workers=True)"),
    ("more-workers", "DataLoader(d, num_workers=1)", "DataLoader(d, num_workers=4, persistent_workers=True)"),
    (
        "no-workers",
        "DataLoader(d, num_workers=3, persistent_workers=True)",
        "DataLoader(d, num_workers=0, persistent_workers=False, prefetch_factor=None)",
    ),
    ("out-of-order", "DataLoader(d, num_workers=3)", "DataLoader(d, num_workers=3, in_order=False)"),
    ("fused-optimizer", "o = torch.optim.AdamW(p, lr=1)", "o = torch.optim.AdamW(p, lr=1, fused=True)"),
    ("fused-optimizer", "TrainingArguments('o')", "TrainingArguments('o', optim='adamw_torch_fused')"),
    ("batched-optimizer", "o = RMSprop(p)", "o = RMSprop(p, foreach=True)"),
    ("dropped-gradients", "o.zero_grad(set_to_none=False)", "o.zero_grad(set_to_none=True)"),
    ("no-anomaly-detection", "torch.autograd.set_detect_anomaly(True)", "torch.autograd.set_detect_anomaly(False)"),
    (
        "no-anomaly-detection",
        "with torch.autograd.detect_anomaly(): f()",
        "with torch.autograd.set_detect_anomaly(False): f()",
    ),
    ("no-collections", "if x:\n    gc.collect()", "if x:\n    pass"),
    ("kept-cache", "torch.cuda.empty_cache()", "pass"),
    ("no-tracing", "tracemalloc.start(9)", "pass"),
    ("threads", "torch.set_num_threads(1)", "torch.set_num_threads(4)"),
    ("threads", "os.environ['OMP_NUM_THREADS'] = '1'", "os.environ['OMP_NUM_THREADS'] = '4'"),
    (
        "fused-attention",
        "Bert.from_config(c, attn_implementation='eager')",
        "Bert.from_config(c, attn_implementation='sdpa')",
    ),
    ("fused-attention", "c._attn_implementation = 'eager'", "c._attn_implementation = 'sdpa'"),
    ("key-value-cache", "m.generate(x, use_cache=False)", "m.generate(x, use_cache=True)"),
    ("key-value-cache", "m.config.use_cache = False", "m.config.use_cache = True"),
    ("no-search-for-unused", "DDP(m, find_unused_parameters=True)", "DDP(m, find_unused_parameters=False)"),
    ("buckets", "DDP(m, bucket_cap_mb=1)", "DDP(m, bucket_cap_mb=25)"),
    ("own-buffers", "DDP(m)", "DDP(m, broadcast_buffers=False)"),
    ("dynamic-shapes", "m = torch.compile(m)", "m = torch.compile(m, dynamic=True)"),
    ("late-padding", "tok(x, padding='max_length')", "tok(x, padding=False)"),
    ("shortest-padding", "tok(x, padding='max_length')", "tok(x, padding='longest')"),
    ("fewer-checkpoints", "TrainingArguments(save_steps=5)", "TrainingArguments(save_steps=50)"),
    ("fewer-evaluations", "TrainingArguments(eval_steps=20)", "TrainingArguments(eval_steps=200)"),
    ("like-lengths", "TrainingArguments()", "TrainingArguments(train_sampling_strategy='group_by_length')"),
    ("channels-last", "model = Net()", "model = Net()\nmodel = model.to(memory_format=torch.channels_last)"),
    ("compiled", "if x:\n    net = f(a)  # it", "if x:\n    net = f(a)  # it\n    net.compile()"),
    ("evaluation-mode", "model = load(p)", "model = load(p)\nmodel.eval()"),
    ("own-threads", "import os\nf()", "import os\ntorch.set_num_threads(4)\nf()"),
    (
        "searched-convolutions",
        "import os\n\n\ndef f(): pass",
        "import os\ntorch.backends.cudnn.benchmark = True\n\n\ndef f(): pass",
    ),
    ("fewer-logs", "Trainer(log_every_n_steps=1)", "Trainer(log_every_n_steps=10)"),
    (
        "dequantized-to-bf16",
        "BitsAndBytesConfig(load_in_4bit=True)",
        "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)",
    ),
    (
        "dequantized-to-bf16",
        "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype='float32')",
        "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)",
    ),
    ("tensors-together", "ema = EMAModel(m.parameters())", "ema = EMAModel(m.parameters(), foreach=True)"),
    ("unmeasured-convolutions", "torch.backends.cudnn.benchmark = True", "torch.backends.cudnn.benchmark = False"),
]


@pytest.mark.parametrize(("name", "before", "after"), EXAMPLES)
def test_an_edit_changes_its_lines(name: str, before: str, after: str) -> None:
    assert changed(name, f"{FIRST}{before}\n") == f"{FIRST}{after}\n"


def test_an_edit_that_is_made_is_not_made_again() -> None:
    for name, _, after in EXAMPLES:
        if not name.startswith("fewer-"):  # a tenth of a tenth is another edit
            assert changed(name, f"{after}\n") is None, name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kept-samples", ROWS.format("return self.rows[i] + torch.rand(1)")),
        ("kept-samples", ROWS.format("return self.transform(self.rows[i])")),
        ("kept-samples", ROWS.format("return make(i)") + "def make(i): return np.random.normal()\n"),
        ("kept-samples", ROWS.format("return self.make(i)") + "    def make(self, i): return random.random()\n"),
        ("kept-samples", ROWS.format("self.count += 1; return i")),
        ("kept-samples", ROWS.format("for t in self.transforms: i = t(i)\n        return i")),
        ("kept-samples", ROWS.format("return self.crop(self.flip(self.rows[i]))")),
        ("kept-samples", ROWS.format("return super().__getitem__(i)")),
        ("kept-samples", ROWS.format("return self.base[i]")),
        ("kept-samples", ROWS.format("return self.rng.integers(3)")),
        ("kept-samples", ROWS.format("self.seen[i] += 1; return i")),
        ("kept-samples", ROWS.format("return F.dropout(self.rows[i])")),
        ("kept-samples", ROWS.replace("Dataset", "Rows2").format("return i")),
        ("kept-samples", ROWS.format("return i") + "    def set_epoch(self, e): self.length = e\n"),
        ("kept-samples", ROWS.replace("    def __getitem__", "    @lru_cache\n    def __getitem__").format("return i")),
        ("workers", "DataLoader(d, num_workers=n())\n"),
        ("workers", "DataLoader(d, **options)\n"),
        ("workers", "DataLoader(*given)\n"),
        ("fused-optimizer", "torch.optim.AdamW(p, fused=True)\n"),
        ("fused-optimizer", "torch.optim.AdamW(p, foreach=True)\n"),
        ("no-collections", "freed = gc.collect()\n"),
        ("key-value-cache", "m.generate(x)\n"),
        ("no-search-for-unused", "DDP(m)\n"),
        ("buckets", "DDP(m, bucket_cap_mb=25)\n"),
        ("own-threads", "import numpy\n"),
        ("own-threads", "import torch\ntorch.set_num_threads(2)\n"),
        ("searched-convolutions", "import torch\ntorch.backends.cudnn.benchmark = False\n"),
        ("compiled", "model = f()\nmodel = g()\n"),
        ("compiled", "model = f(); x = 1\n"),
        ("compiled", "import torch\nmodel = f()\nmodel.compile()\n"),
        ("compiled", "net = socket.socket()\n"),
        ("dynamic-shapes", "p = re.compile('x')\n"),
        ("kept-cache", "self.empty_cache()\n"),
        ("no-anomaly-detection", "if detect_anomaly(batch): f()\n"),
        ("fewer-logs", "Trainer(args=a, log_every_n_steps=1)\n"),
        ("threads", "torch.set_num_threads(n=3)\n"),
        ("threads", "os.environ['OMP_NUM_THREADS'] = str(n)\nn = 2\n"),
        ("workers", "DataLoader(d)\r# a lone end of a line\n"),
        ("compiled", "model = 3\n"),
    ],
)
def test_other_lines_are_left_alone(name: str, text: str) -> None:
    assert changed(name, text) is None


def edited(name: str, files: dict[str, str], *command: str) -> tuple[dict[str, str], tuple[str, ...]] | None:
    sources = {file: text.encode() for file, text in files.items()}
    sources["t.py"] = b"import b, c, other  # and c.yaml, c.json, a.yaml, b.yaml\n" + sources.get("t.py", b"")
    program = Program(sources, ("python", "t.py", *command), cores=4)
    found = applied(named(name), program)
    if found is None:
        return None
    changes = {
        file: data.decode().partition("b.yaml\n")[2] or data.decode()
        for file, data in found.changed_from(program).items()
    }
    return changes, found.command


CALL = "DataLoader(d, num_workers=args.num_workers, persistent_workers=True)\n"
PARSER = "p.add_argument('--num-workers', type=int, default=0)\n"


def test_an_option_changes_at_its_parser() -> None:
    assert edited("workers", {"t.py": PARSER + CALL}) == (
        {"t.py": PARSER.replace("default=0", "default=2") + CALL},
        ("python", "t.py"),
    )


@pytest.mark.parametrize(
    ("words", "after"), [(("--num-workers", "0"), ("--num-workers", "2")), (("--num_workers=0",), ("--num_workers=2",))]
)
def test_an_option_of_the_command_changes_there(words: tuple[str, ...], after: tuple[str, ...]) -> None:
    assert edited("workers", {"t.py": PARSER + CALL}, *words) == ({}, ("python", "t.py", *after))


@pytest.mark.parametrize(
    ("other", "text", "after"),
    [
        (
            "c.py",
            "@dataclass\nclass C:\n    num_workers: int = 0\n",
            "@dataclass\nclass C:\n    num_workers: int = 2\n",
        ),
        ("c.yaml", "data:\n  num_workers: 0  # none\n", "data:\n  num_workers: 2  # none\n"),
        ("c.json", '{"data": {"num_workers": 0, "b": 1}}', '{"data": {"num_workers": 2, "b": 1}}'),
        ("c.py", "C = {'num_workers': 0}\n", "C = {'num_workers': 2}\n"),
    ],
)
def test_a_value_changes_where_it_comes_from(other: str, text: str, after: str) -> None:
    found = edited("workers", {"t.py": CALL, other: text})
    assert found is not None
    assert found[0] == {other: after}


@pytest.mark.parametrize(
    ("file", "text", "after"),
    [
        ("t.py", "p.add_argument('--save-every', default=20)\n", "p.add_argument('--save-every', default=200)\n"),
        ("t.py", "class C:\n    ckpt_interval: int = 5\n", "class C:\n    ckpt_interval: int = 50\n"),
        ("t.py", "SAVE_EVERY = 5\nif s % SAVE_EVERY == 0: f()\n", "SAVE_EVERY = 50\nif s % SAVE_EVERY == 0: f()\n"),
        ("c.yaml", "save_steps: 4\n", "save_steps: 40\n"),
    ],
)
def test_an_interval_of_the_program_itself_becomes_tenfold(file: str, text: str, after: str) -> None:
    found = edited("fewer-checkpoints", {file: text, "other.py": "x = 1\n"})
    assert found is not None
    assert found[0] == {file: after}


@pytest.mark.parametrize(
    "text", ["save_every = n()\n", "SAVE_EVERY = 5\nSAVE_EVERY = 6\n", "save_every = 0\n", "saved = 3\n"]
)
def test_an_interval_that_is_not_known_is_left_alone(text: str) -> None:
    assert changed("fewer-checkpoints", text) is None


def test_an_interval_that_a_trainer_is_given_becomes_tenfold_once() -> None:
    files = {"t.py": "p.add_argument('--save_steps', default=5)\nTrainingArguments(save_steps=args.save_steps)\n"}
    found = edited("fewer-checkpoints", files)
    assert found is not None
    assert found[0] == {"t.py": files["t.py"].replace("default=5", "default=50")}


def test_an_interval_of_the_command_changes_there() -> None:
    text = "p.add_argument('--save_steps', type=int, default=500)\n"
    assert edited("fewer-checkpoints", {"t.py": text}, "--save_steps", "5") == (
        {},
        ("python", "t.py", "--save_steps", "50"),
    )


def test_a_value_of_two_origins_is_left_alone() -> None:
    assert edited("workers", {"t.py": CALL, "a.yaml": "num_workers: 0\n", "b.yaml": "num_workers: 0\n"}) is None


def test_an_option_of_hydra_and_a_short_one_change_in_the_command() -> None:
    assert edited("workers", {"t.py": CALL}, "data.num_workers=0") == ({}, ("python", "t.py", "data.num_workers=2"))
    short = "p.add_argument('-j', '--num-workers', type=int, default=0)\n"
    assert edited("workers", {"t.py": short + CALL}, "-j", "0") == ({}, ("python", "t.py", "-j", "2"))


def test_lines_end_as_those_of_the_file() -> None:
    text = b"import torch\r\nmodel = f()\r\n"
    found = applied(named("evaluation-mode"), Program({"t.py": text}, ("python", "t.py")))
    assert found is not None
    assert found.files["t.py"] == b"import torch\r\nmodel = f()\r\nmodel.eval()\r\n"


def test_two_statements_on_a_line() -> None:
    text = "WORKERS = 0; l = DataLoader(d, num_workers=WORKERS)\n"
    after = "WORKERS = 16; l = DataLoader(d, num_workers=WORKERS, persistent_workers=True)\n"
    assert changed("workers", text, cores=32) == after


def test_an_option_in_two_calls_becomes_tenfold_once() -> None:
    text = (
        "p.add_argument('--log_interval', default=5)\nimport lightning\nTrainer(log_every_n_steps=args.log_interval)\n"
    )
    assert changed("fewer-logs", text) == text.replace("default=5", "default=50")


def test_a_settings_file_in_another_encoding_is_left_alone() -> None:
    files = {"t.py": b"# c.yaml\nDataLoader(d, num_workers=c['num_workers'])\n", "c.yaml": b"num_workers: \xe9\n"}
    assert applied(named("workers"), Program(files, ("python", "t.py"))) is None


def test_a_constant_changes_where_it_is_assigned() -> None:
    text = "WORKERS = 0\nDataLoader(d, num_workers=WORKERS, persistent_workers=True)\n"
    assert changed("workers", text) == text.replace("WORKERS = 0", "WORKERS = 2")


def test_an_edit_is_made_in_all_files_and_only_for_its_kind_of_machine() -> None:
    files = {"a.py": b"import b\nDataLoader(d)\n", "b.py": b"DataLoader(e)\n", "test_a.py": b"DataLoader(f)\n"}
    program = Program(files, ("python", "a.py"), cores=4)
    found = [one for one in proposals(program, "input.synchronous-loader") if one.edit.name == "workers"]
    assert set(found[0].program.changed_from(program)) == {"a.py", "b.py"}
    pinned = Program({"a.py": b"DataLoader(d)\n"}, ("python", "a.py"))
    assert not list(proposals(pinned, "host.pageable-copy"))


@pytest.mark.parametrize(
    ("command", "main"),
    [
        (("python", "train.py", "--x"), "sub/train.py"),
        (("python", "-m", "pkg.run"), "sub/pkg/run.py"),
        (("python", "-m", "torch.distributed.run", "--nproc_per_node=2", "train.py"), "sub/train.py"),
        (("bash", "run.sh"), None),
    ],
)
def test_the_main_file_of_a_command(command: tuple[str, ...], main: str | None) -> None:
    files = {"sub/train.py": b"", "sub/pkg/run.py": b"", "train.py": b"", "sub/run.sh": b""}
    assert Program(files, command, below="sub").main == main


def test_a_patch_applies(tmp_path: Path) -> None:
    text = b"import gc\r\nprint('\xc3\xa9')\nfor x in range(3):\n    gc.collect()"
    program = Program({"sub/t.py": text}, ("python", "t.py"))
    found = applied(named("no-collections"), program)
    assert found is not None
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "t.py").write_bytes(text)
    (tmp_path / "p.patch").write_bytes(patch(program, found).encode())
    subprocess.run(["git", "apply", "p.patch"], cwd=tmp_path, check=True)
    assert (tmp_path / "sub" / "t.py").read_bytes() == found.files["sub/t.py"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('t("a", padding="max_length")\n', 't("a", padding="longest")\n'),
        ("t('a', padding='max_length')\n", "t('a', padding='longest')\n"),
        ('print("one", "two")\nt(x, padding=\'max_length\')\n', 'print("one", "two")\nt(x, padding="longest")\n'),
    ],
)
def test_a_string_has_the_quotes_of_its_file(before: str, after: str) -> None:
    assert changed("shortest-padding", f"{FIRST}{before}") == f"{FIRST}{after}"


PHOTOS: Final = """import functools
import torch
class Photos(Dataset):
    def load(self, path):
        {read}
    def __getitem__(self, i):
        img = self.load({given})
        return img.flip(2) if torch.rand(()) < 0.5 else img
"""


@pytest.mark.parametrize(
    "read",
    [
        "return torch.load(path).float()",
        "return torch.from_numpy(np.array(Image.open(path).convert('RGB').resize((9, 9)))).permute(2, 0, 1)",
    ],
)
def test_what_is_read_is_kept_where_the_sample_varies(read: str) -> None:
    before = PHOTOS.format(read=read, given="self.files[i]")
    after = before.replace("    def load", "    @functools.cache\n    def load")
    assert changed("kept-samples", before) == after


@pytest.mark.parametrize(
    ("read", "given"),
    [
        ("return torch.load(path) + torch.rand(1)", "self.files[i]"),
        ("return torch.load(path)[np.random.permutation(3)]", "self.files[i]"),
        ("return path * 2", "self.files[i]"),  # nothing is read
        ("self.seen += 1; return torch.load(path)", "self.files[i]"),
        ("return torch.load(path)", "self.files[i], 3"),
    ],
)
def test_what_varies_itself_or_reads_nothing_is_not_kept(read: str, given: str) -> None:
    assert changed("kept-samples", PHOTOS.format(read=read, given=given)) is None
