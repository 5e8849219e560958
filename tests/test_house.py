"""What holds for the project as a whole: versions agree, links lead somewhere, importing is cheap."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib import metadata
from importlib.resources import files
from pathlib import Path

import pytest

import whystall

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
HEAVY = {"torch", "polars", "numpy", "rich", "msgspec", "jinja2", "pyarrow", "psutil", "isal"}


def project() -> dict[str, object]:
    table: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return table


def test_the_version_is_the_same_everywhere() -> None:
    version = whystall.__version__

    assert project()["version"] == version
    assert metadata.version("whystall") == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_public_names_are_few_and_exist() -> None:
    assert sorted(whystall.__all__) == list(whystall.__all__)
    assert {"analyze", "load", "render"} <= set(whystall.__all__)
    assert all(hasattr(whystall, name) for name in whystall.__all__)


def test_the_package_says_that_it_is_typed() -> None:
    assert (files("whystall") / "py.typed").is_file()


@pytest.mark.parametrize("program", ["import whystall", "import whystall.cli", "import whystall.errors"])
def test_importing_loads_nothing_heavy(program: str) -> None:
    check = f"import sys; {program}; print(sorted({{name.partition('.')[0] for name in sys.modules}} & {HEAVY}))"

    ended = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)

    assert ended.stdout.strip() == "[]"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_a_module_says_why_it_exists(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text())), "a module docstring says why the file exists"


def imported_when_loaded(path: Path, names: set[str]) -> set[str]:
    """The modules of whystall that a module imports when it is loaded, whatever it imports later or for types."""
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} & names or {node.module}
    return found & names


def test_no_modules_import_each_other_in_a_circle() -> None:
    names = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__"): path
        for path in SOURCES
    }
    graph = {name: imported_when_loaded(path, set(names)) - {name} for name, path in names.items()}
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle
    assert len(order) == len(names)


def links(page: Path) -> list[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()

    # The pages of single causes are reached through their index.
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "causes" or page.stem == "index"]
    missing = [page for page in pages if str(page.relative_to(ROOT / "docs")) not in navigation]

    assert missing == []


def test_the_pages_name_only_commands_that_exist() -> None:
    from whystall.cli.registry import VERBS

    verbs = {verb.name for verb in VERBS} | {"VERB"}
    named = {
        verb for page in PAGES for verb in re.findall(r"(?:^ {4}|`)whystall (\w+)", page.read_text(), re.MULTILINE)
    }

    assert named <= verbs


def test_the_reference_of_the_command_line_has_every_verb() -> None:
    from whystall.cli.registry import VERBS

    text = (ROOT / "docs" / "reference" / "cli.md").read_text()
    table = re.findall(r"^\| \[`(\w+)`\]", text, flags=re.MULTILINE)
    sections = re.findall(r"^## (\w+)$", text, flags=re.MULTILINE)
    verbs = {verb.name for verb in VERBS}

    assert set(table) == verbs
    assert verbs - set(sections) == {"model"}  # it has a page of its own


def test_the_reference_of_python_has_every_public_name() -> None:
    text = (ROOT / "docs" / "reference" / "python.md").read_text()
    headings = " ".join(re.findall(r"^## (.+)$", text, flags=re.MULTILINE))
    named = set(re.findall(r"whystall\.(\w+)", headings))

    # Reports and traces are what `analyze` and `load` return.
    assert set(whystall.__all__) - {"Report", "Trace", "__version__"} <= named


def test_every_make_target_in_the_pages_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = {
        target for page in PAGES for target in re.findall(r"(?:^ {4}|`)make ([a-z-]+)", page.read_text(), re.MULTILINE)
    }

    assert named <= targets


def imported(path: Path) -> set[str]:
    """The top-level names that a module imports, anywhere in it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def test_torch_is_imported_only_where_a_job_runs() -> None:
    allowed = {"capture", "model", "probe", "integrations"}
    rooms = {path: path.relative_to(ROOT / "src" / "whystall").parts[0] for path in SOURCES}

    assert [path for path, room in rooms.items() if room not in allowed and "torch" in imported(path)] == []


def test_nothing_asks_the_collector_for_the_objects_of_others() -> None:
    # A reference from another thread to a tuple under construction ends the job's import with a SystemError.
    kin = {"get_objects", "get_referrers", "get_referents"}
    named = {
        str(path.relative_to(ROOT)): sorted(
            kin & {part for node in ast.walk(ast.parse(path.read_text())) for part in words(node)}
        )
        for path in SOURCES
    }

    assert {path: found for path, found in named.items() if found} == {}


def words(node: ast.AST) -> list[str]:
    """The names that a node of a program holds."""
    found = [getattr(node, field, None) for field in ("id", "attr", "name", "value")]
    return [word for word in found if isinstance(word, str)]


def module_name(path: Path) -> str:
    """The dotted name of a source file of the package or of the benchmarks."""
    base = ROOT / "src" if path.is_relative_to(ROOT / "src") else ROOT
    parts = path.relative_to(base).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def dependencies(path: Path, known: set[str]) -> set[str]:
    """The modules among ``known`` that a module imports, in functions and for types as well."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            named = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= named & known or {node.module}
            found |= {node.module} if named - known else set()
    return found & known - {module_name(path)}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules each of which leads to all others of its group."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            new = graph[waiting.pop()] - seen
            seen |= new
            waiting += new
        return seen

    ways = {name: reached(name) for name in graph}
    groups = {frozenset(other for other in ways[name] if name in ways[other]) for name in graph if name in ways[name]}
    return sorted(sorted(group) for group in groups)


@pytest.mark.parametrize("folder", ["src/whystall", "benchmarks"])
def test_no_module_imports_what_imports_it(folder: str) -> None:
    names = {module_name(path): path for path in sorted((ROOT / folder).rglob("*.py"))}
    graph = {name: dependencies(path, set(names)) for name, path in names.items()}

    assert circles(graph) == []


def shared_lines(texts: dict[str, str], length: int) -> list[tuple[str, str]]:
    """Pairs of places where so many lines in a row are the same; imports, signatures and comments left out."""
    seen: dict[tuple[str, ...], str] = {}
    found = []
    for name, text in texts.items():
        lines = [
            (number, line.strip())
            for number, line in enumerate(text.splitlines(), 1)
            if re.search(r"[(=\[]", line) and not re.match(r"\s*(#|from |import |\w+: [\w\[\], |]+,?$)", line)
        ]
        for at in range(len(lines) - length + 1):
            key = tuple(line for _, line in lines[at : at + length])
            place = f"{name}:{lines[at][0]}"
            if seen.setdefault(key, place) != place:
                found.append((seen[key], place))
    return found


def test_nothing_is_written_twice() -> None:
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in SOURCES}
    assert shared_lines(texts, 10) == []
    assert shared_lines({"a.py": "x = 1\n" * 10, "b.py": "x = 1\n" * 10}, 10) == [("a.py:1", "b.py:1")]


def test_only_the_command_line_uses_the_front_door() -> None:
    # `import whystall` leads to everything, by names that are looked up when they are used: no graph of imports shows
    # it.
    through = {
        str(path.relative_to(ROOT / "src"))
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Import) and any(alias.name == "whystall" for alias in node.names))
    }

    assert {path for path in through if not path.startswith("whystall/cli/")} == set()
