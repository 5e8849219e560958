"""Texts of a log made fit for a report: no folders, no lines of code, no values of texts.

The log holds the model's code and paths of the machine. A report shows a file's name with a line, a guard, and torch's
own sentences.
"""

from __future__ import annotations

import re
from typing import Final

from whystall.compilation.results import Place

__all__ = ["address_of", "file_name", "first_sentence", "guard_text", "guarded_line", "hint_of", "place_of"]

_LONGEST: Final = 240
_LONGEST_READ: Final = 4096
_LONGEST_NAME: Final = 120
_LARGEST_LINE: Final = 1 << 31
_FOLDERS: Final = re.compile(
    r"(?<![\w.])(?:[A-Za-z]:)?[/\\](?:[^/\\\s'\":,]+[/\\])*(?=[^/\\\s])"  # from the root on
    r"|(?:[\w.~@-]+[/\\]){2,}(?=\w)|(?:[\w.~@-]+[/\\])+(?=[\w-]+\.py\b)"
)
_ADDRESS: Final = re.compile(
    r"https://(?:meta-pytorch\.github\.io|docs\.pytorch\.org|pytorch\.org)/[\w./#-]{1,150}(?<![.#])"
)
# Texts that name something (a source in a guard, the tensor of a mismatch) stay; others are values.
_TEXT: Final = re.compile(
    r"(?P<kept>tensor '[\w.\[\]'\"]{1,200}?'(?= )|(?<=[\w\]])\[(?:'[\w.]{1,100}'|\"[\w.]{1,100}\")\])"
    r"|'[^']*'|\"[^\"]*\"|'.*|\".*",
    re.DOTALL,
)
_CODE: Final = re.compile(r"\s+#.*", re.DOTALL)
_VERSION: Final = re.compile(r"^\s*!?\d*/?\d+/\d+: ")
_GUARDED: Final = re.compile(r"# (?:\S*[/\\])?([^\s/\\:]{1,120}):(\d{1,9}) in ([\w.<>]{1,120})")
_HINT: Final = re.compile(r"^\s*Hint: (.+)$", re.MULTILINE)
_RAISED: Final = re.compile(r"^([A-Za-z_][\w.]{0,100}(?:Error|Exception|Warning|Failed|Interrupt)\w*)\b", re.MULTILINE)
_MESSAGE: Final = re.compile(r"^([A-Za-z_][\w.]{0,100}(?:Error|Exception|Interrupt)): ")
_ENTRY: Final = "Encountered graph break when attempting to trace"
_BACKTICKS: Final = re.compile(r"(`[^`\n]*`)")
_TERMS: Final = re.compile(r"^`(?:[\w.]{1,80}(?:\(\))?|torch[\w.]* = \w+|export TORCH\w*=\w+)`$")


def file_name(path: object) -> str:
    r"""The name of a file without its folders.

    >>> file_name("/home/someone/train.py"), file_name("C:\\work\\a.py"), file_name(None)
    ('train.py', 'a.py', '?')
    """
    if not isinstance(path, str):
        return "?"
    return re.split(r"[/\\]", path[-_LONGEST_READ:])[-1][:_LONGEST_NAME] or "?"


def place_of(path: object, line: object, function: object) -> Place | None:
    """A line of code by its raw fields; ``None`` where there is no file."""
    if not isinstance(path, str) or not path:
        return None
    number = line if isinstance(line, int) and 0 <= line < _LARGEST_LINE else 0
    return Place(file_name(path), number, function[:_LONGEST_NAME] if isinstance(function, str) else "?")


def _public(text: str) -> str:
    """The text without folders and without the values of texts."""
    kept = _TEXT.sub(lambda found: found["kept"] or "'…'", text)
    return _FOLDERS.sub("", kept)[:_LONGEST].strip()


def guard_text(raw: str) -> str:
    """A failed guard without the version, the line of code behind it, and values of texts.

    >>> guard_text("1/0: ___stack0 == 123.5       # if x.sum().item()>1e9: x=x*2  # home/cb.py:17 in forward")
    '___stack0 == 123.5'
    >>> guard_text("0/1: tensor 'x' size mismatch at index 0. expected 3, actual 4")
    "tensor 'x' size mismatch at index 0. expected 3, actual 4"
    >>> guard_text("L['mode'] == 'my secret'")
    "L['mode'] == '…'"
    """
    first = raw[:_LONGEST_READ].strip().split("\n", 1)[0]
    return _public(_CODE.sub("", _VERSION.sub("", first)))


def guarded_line(raw: str) -> Place | None:
    """The line that made a guard, where torch wrote it behind the code.

    >>> guarded_line("0/0: n == 1.5          # y = x * n  # own/prog.py:4 in f")
    Place(file='prog.py', line=4, function='f')
    """
    found = _GUARDED.findall(raw[:_LONGEST_READ].strip().split("\n", 1)[0])
    if not found:
        return None
    file, line, function = found[-1]
    return Place(file, int(line), function)


def first_sentence(raw: object) -> str:
    r"""The sentence in which torch says why, without what it adds on the case.

    >>> first_sentence("Unsupported Tensor.item() call with capture_scalar_outputs=False\n  Explanation: …")
    'Unsupported Tensor.item() call with capture_scalar_outputs=False'
    >>> first_sentence("'skip function graph_break in file /data/someone/torch/_dynamo/decorators.py'")
    'skip function graph_break in file decorators.py'
    >>> first_sentence("backend='mine' raised:\nRuntimeError: a secret")
    "backend='…' raised: RuntimeError"
    """
    if not isinstance(raw, str):
        return "not recorded"
    lines = [line.strip() for line in raw[:_LONGEST_READ].split("\n")]
    lines = [line for line in lines if line and not line.startswith(_ENTRY)]
    if not lines:
        return "not recorded"
    first = lines[0]
    if len(first) > 1 and first[0] == first[-1] and first[0] in "'\"":
        first = first[1:-1]
    if (typed := _MESSAGE.match(first)) is not None:
        return typed[1]  # the message may be the user's
    said = _public(_without_code(first))
    if first.endswith("raised:"):
        raised = _RAISED.search("\n".join(lines[1:]))
        return f"{said} {raised[1]}" if raised is not None else said
    return said


def _without_code(text: str) -> str:
    """The text with quoted code left out: names and torch's settings stay."""
    return _BACKTICKS.sub(lambda found: found[0] if _TERMS.match(found[0]) else "`…`", text)


def hint_of(raw: object) -> str | None:
    """The first thing that torch advises against a graph break."""
    found = _HINT.search(raw[:_LONGEST_READ]) if isinstance(raw, str) else None
    return _public(_without_code(found[1])) or None if found is not None else None


def address_of(raw: object) -> str | None:
    """The address of torch's page on a graph break; no other host's.

    >>> address_of("please visit: https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0124.html")
    'https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0124.html'
    >>> address_of("please visit: https://elsewhere.example/gb0124.html")
    """
    if not isinstance(raw, str):
        return None
    found = [one for one in _ADDRESS.findall(raw[: 4 * _LONGEST_READ]) if "/gb" in one]
    return found[0] if found else None
