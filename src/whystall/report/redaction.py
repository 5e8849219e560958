"""A report without the names of a job, for showing outside.

Only names known to be public are kept, by the whole name and never by its beginning: words of whystall's own
texts, tables and code (``num_workers``, ``attention``, ``DataLoader``), and the names in ``public_names.txt``
(operators, autograd's nodes, runtime calls, kernels, modules; a source for each list). Names of kernels that libraries
generate (``ampere_sgemm_128x64_tn``) are kept if each of their parts is known. Every other word (of files, functions,
modules, classes, annotations, hosts, custom kernels) becomes ``name1``, ``name2`` and so on, the same one each time.
Files of traces are renamed. Lines of code are left out. Numbers, times and shapes stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import msgspec

from whystall.json_text import parse_json
from whystall.report.schema import Report, encode
from whystall.run_folder.layout import rank_file

_TEXTS: Final = ("*.py", "*.toml", "*.csv", "*.j2")
_PUBLIC_NAMES: Final = "public_names.txt"
_WORD: Final = re.compile(r"\w+")
# A number, perhaps with its unit (80GB), or sizes (128x64).
_NUMBER: Final = re.compile(r"\d+(x\d+)*[A-Za-z]{0,2}")
_LETTERS: Final = re.compile(r"[^\W\d_]+")
_OF_LANGUAGES: Final = "const unsigned signed anonymous namespace struct half volatile restrict"
# A single letter names nothing.
_SHORT: Final = 2
_WHOLE: Final = ("operators", "libraries", "calls", "kernels", "modules")
_NODE: Final = re.compile(r"(\w+?)Backward\d{0,2}")
_MANGLED: Final = "_Z"
# An identifier's length; and the signs between identifiers: types, numbers of arguments, substitutions.
_SIZE: Final = re.compile(r"([1-9]\d{0,2})(?=[A-Za-z_])")
_SIGN: Final = re.compile(
    r"L[a-z](n?\d+)E|S[0-9A-Z]*_|T[0-9A-Z]*_|S[tabsiod]|D[a-zA-Z]\w?|U[lt]|E\d*_|[A-Z]|"
    r"(?:cl|ix|pl|mi|eq|ne|lt|gt)(?=E)|[vwbcahstijlmxyfdn]|_|\d"
)
_FUSED: Final = re.compile(r"triton_[a-z]*_")
# Suffixes of a trace's file name.
_ENDING: Final = re.compile(r"(\.pt)?(\.trace)?(\.(json|pb|sqlite|csv|db|parquet|xplane|pftrace|gz|zip))*$")
# Fields whose text is code of the job.
_CODE: Final = frozenset({"text", "symbol"})
# A CPU's model does not identify its owner, and decides whether two reports compare.
_OF_THE_MAKER: Final = frozenset({"cpu"})


def redacted(report: Report) -> Report:
    """The same report with every name that is not public replaced, and without lines of code."""
    report = msgspec.structs.replace(report, source=msgspec.structs.replace(report.source, inputs=None))
    return msgspec.convert(
        _Redaction(file.path for file in report.source.files).value(parse_json(encode(report))), Report
    )


@cache
def _public() -> frozenset[str]:
    """All words of whystall's own files, in small letters."""
    folder = Path(__file__).parents[1]
    files = [file for pattern in _TEXTS for file in folder.rglob(pattern)]
    texts = [_OF_LANGUAGES, *(file.stem for file in files), *(file.read_text(encoding="utf-8") for file in files)]
    return frozenset(
        part.lower() for text in texts for word in _WORD.findall(text) for part in (word, *word.split("_"))
    )


@cache
def _lists() -> dict[str, frozenset[str]]:
    """The lists of public names by their heads."""
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in resources.files("whystall.report").joinpath(_PUBLIC_NAMES).read_text("utf-8").splitlines():
        if line.startswith("["):
            names = found.setdefault(line[1:].partition("]")[0], [])
        else:
            names.append(line)
    return {head: frozenset(names) for head, names in found.items()}


@cache
def _is_public(word: str) -> bool:
    """Whether a word is known as it stands, or is made by a tool of words that are."""
    return (
        len(word) < _SHORT
        or _NUMBER.fullmatch(word) is not None
        or word.lower() in _public()
        or any(word in _lists()[head] for head in _WHOLE)
        or _is_node(word)
        or _is_generated(word)
        or _is_mangled(word)
    )


def _is_node(word: str) -> bool:
    """Whether a word is a node of autograd's graph."""
    found = _NODE.fullmatch(word)
    return found is not None and any(found[1] in _lists()[head] for head in ("nodes", "libraries"))


def _is_generated(word: str) -> bool:
    """Whether a library generates such names for its kernels, of parts that are all known."""
    parts = [part for part in _LETTERS.findall(word) if len(part) >= _SHORT]
    if not parts or not word.isascii():
        return False
    if _FUSED.match(word):
        return _lists()["fused"].issuperset(parts)
    return parts[0] in _lists()["families"] and _lists()["parts"].issuperset(parts)


def _is_mangled(word: str) -> bool:
    """Whether a word is a C++ name as compilers write it (``_ZN2at6native...``), whose own words are all known."""
    if not word.startswith(_MANGLED):
        return False
    at = len(_MANGLED)
    while at < len(word):
        size = _SIZE.match(word, at)
        if size is not None:
            name = word[size.end() : size.end() + int(size[1])]
            at = size.end() + int(size[1])
            if at > len(word) or not _is_public_in_mangled(name):
                return False
        else:
            sign = _SIGN.match(word, at)
            if sign is None:
                return False
            at = sign.end()
    return True


def _is_public_in_mangled(name: str) -> bool:
    return not name.startswith(_MANGLED) and (_is_public(name) or name == "_GLOBAL__N_1")


class _Redaction:
    """Replaces names, the same by the same."""

    def __init__(self, files: Iterator[str]) -> None:
        self._names: dict[str, str] = {}
        renamed = {file: self._file(file) for file in files if rank_file(file) is None}
        self._renamed = renamed
        by_length = sorted(renamed, key=len, reverse=True)
        self._files = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, by_length))})(?!\w)") if renamed else None

    def value(self, value: Any, field: str = "") -> Any:
        """A value of the report's JSON; ``field`` is where it stands."""
        if isinstance(value, dict):
            is_remedy = "patch" in value
            return {key: self.value(one, "" if is_remedy else key) for key, one in value.items()}
        if isinstance(value, list):
            return [self.value(one, field) for one in value]
        if not isinstance(value, str) or field in _OF_THE_MAKER:
            return value
        return self.text(value, code=field in _CODE)

    def text(self, text: str, *, code: bool) -> str:
        """A text with its names replaced; of code only a name by itself is kept."""
        if code and not text.isidentifier():
            return ""
        if self._files is None:
            return self._words(text)
        kept, at = [], 0
        for found in self._files.finditer(text):
            kept += [self._words(text[at : found.start()]), self._renamed[found.group()]]
            at = found.end()
        return "".join([*kept, self._words(text[at:])])

    def _words(self, text: str) -> str:
        return _WORD.sub(lambda found: self._word(found.group()), text)

    def _word(self, word: str) -> str:
        return word if _is_public(word) else self._other(word)

    def _other(self, name: str) -> str:
        return self._names.setdefault(name, f"name{len(self._names) + 1}")

    def _file(self, name: str) -> str:
        """The file's ending stays, which is its format."""
        ending = _ENDING.search(name)
        kept = ending.group() if ending is not None else ""
        return f"{self._other(name)}{kept}"
