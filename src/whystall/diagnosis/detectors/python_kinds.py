"""The kind of Python work, for known names: by the innermost function that was found, or the line's own text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from whystall.analysis.run_results import SampledLine
from whystall.diagnosis.detectors.samples import AWAITS, is_torchs, share_of
from whystall.run_folder.samples import BEFORE, CALLED

_KINDS: Final = {
    "locked": re.compile(r"^(filelock|fasteners|portalocker)[.:]|\b(flock|lockf)\(|\b\w*FileLock\("),
    "encoded": re.compile(r"^PIL\.\w+:_encode|^PIL\.\w+:_?save\b|\bimencode\(|\bsavefig\("),
    "decoded": re.compile(r"^(PIL\.|cv2[:.]|imageio\.|skimage\.)"),
    "loaded": re.compile(
        r"^(numpy\.lib\._?(npyio|format)\w*|zipfile|h5py\.\S*):"
        r"|\b(np|numpy|torch)\.load\(|\bread_(csv|parquet|json|pickle)\(|\bZipFile\("
    ),
    "tabular": re.compile(r"^pandas[.:]"),
    "tokenized": re.compile(r"^(tokenizers|sentencepiece|tiktoken)[.:]|^transformers\.(\S*\.)?tokenization\w*[.:]"),
    "unformatted": re.compile(r"^(datasets\.(formatting\.formatting|arrow_dataset|table)|pyarrow)[.:]"),
    "copied": re.compile(r"^copy:|\bdeepcopy\(|^torch\.nn\.modules\.module:\w*(state_dict|load)\n"),
    "written": re.compile(r"^json[.:]|\bjson\.(dumps|loads)\("),
    "gathered": re.compile(
        r"\bnp\.(append|concatenate|vstack|hstack)\(|\bpd\.concat\(|^transformers\.\S*:nested_concat\n"
    ),
    "weighed": re.compile(r"\bchoice\(.*\bp ?=|\bchoices\(.*\b(cum_)?weights ?="),
    "waited": re.compile(rf"{AWAITS.pattern[:-1]}\n|\bsleep\("),
    "converted": re.compile(r"\btorch\.(tensor|as_tensor|(Float|Double|Long|Int|Bool)?Tensor)\(|\.to_?(py)?list\("),
}
_LEAST: Final = {"locked": 0.2}
"""Minimum share of the time of its part, where that is below a half: a lock's waiter waits for other threads' work."""


def kind_of_python(lines: Iterable[SampledLine]) -> str | None:
    """The kind of most of the time at some lines; ``called``: a call without the lock."""
    found = list(lines)
    whole = share_of(found)
    for name, pattern in _KINDS.items():
        shown = found if name != "converted" else [line for line in found if runs_at_home(line)]
        least = _LEAST.get(name, 0.5)
        if share_of([line for line in shown if pattern.search(f"{line.leaf}\n{line.text}")]) > least * whole:
            return name
    return "called" if share_of([line for line in found if line.leaf == CALLED]) > whole / 2 else None


def runs_at_home(line: SampledLine) -> bool:
    """Whether no function of another file was found below the line, except torch's: the line itself runs."""
    return line.leaf in {CALLED, BEFORE} or is_torchs(line.leaf) or is_of_its_file(line)


def is_of_its_file(line: SampledLine) -> bool:
    """Whether the innermost function is of the line's own file, by the name of its module."""
    module = line.leaf.rpartition(":")[0]
    folder, _, file = line.file.rpartition("/")
    return module == "__main__" or module.rpartition(".")[2] in {file.partition(".")[0], folder.rpartition("/")[2]}
