"""A report without the names of a job: for showing outside what may not be told.

What is kept is what is public: a word stays if whystall's own texts, tables and code have it (``num_workers``,
``attention``, ``DataLoader``), an operator if it is torch's, a kernel if it is of a public library. Every other word
(of files, functions, modules, classes, annotations, hosts, custom kernels) becomes ``name1``, ``name2`` and so on, the
same one each time. Lines of code are left out. Numbers, times and shapes stay.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from whystall.report.schema import Report, encode

_TEXTS: Final = ("*.py", "*.toml", "*.csv", "*.j2")
_WORD: Final = re.compile(r"\w+")
_NAME: Final = re.compile(r"\w+(?:::\w+)*")
# A number, perhaps with its unit (80GB), or sizes (128x64).
_NUMBER: Final = re.compile(r"\d+(x\d+)*[A-Za-z]{0,2}")
# Operators of torch, and kernels by the namespaces and prefixes of the libraries that they come from.
_LIBRARY: Final = re.compile(
    r"(aten|prims?|c10d|_c10d_functional|gloo|torch|torchvision|inductor|autograd|at|c10|std|cub|thrust|cutlass|cute|cudnn"
    r"|cask_cudnn|cask_cudnn_infer|cask__\w+|cublasLt|cublas|pytorch_flash|flash|fmha|cunn|CUDA\w*|cuda\w*|hip\w*|rocblas|ck)(::|_|$)"
    r"|nccl|nvjet_|Cijk_|(sm\d+|volta|turing|ampere|hopper)_|\w+Backward\d+$",
    re.IGNORECASE,
)
_OF_LANGUAGES: Final = "const unsigned signed anonymous namespace struct half volatile restrict"
# What has one letter names nothing.
_SHORT: Final = 2
_COMPILED: Final = re.compile(r"triton_[a-z]+_fused_")
# Fields whose text is code of the job.
_CODE: Final = frozenset({"text", "symbol"})
# What a CPU is called says nothing of whose it is, and whether two reports compare.
_OF_THE_MAKER: Final = frozenset({"cpu"})


def redacted(report: Report) -> Report:
    """The same report with every name that is not public replaced, and without lines of code."""
    report = msgspec.structs.replace(report, source=msgspec.structs.replace(report.source, inputs=None))
    return msgspec.convert(_Redaction().value(msgspec.json.decode(encode(report))), Report)


@cache
def _public() -> frozenset[str]:
    """All words of whystall's own files, in small letters."""
    folder = Path(__file__).parents[1]
    files = [file for pattern in _TEXTS for file in folder.rglob(pattern)]
    texts = [_OF_LANGUAGES, *(file.stem for file in files), *(file.read_text(encoding="utf-8") for file in files)]
    return frozenset(
        part.lower() for text in texts for word in _WORD.findall(text) for part in (word, *word.split("_"))
    )


class _Redaction:
    """Replaces names, the same by the same."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

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
        return _NAME.sub(lambda found: self._name(found.group()), text)

    def _name(self, name: str) -> str:
        """A name, perhaps with namespaces."""
        return name if _LIBRARY.match(name) else _WORD.sub(lambda found: self._word(found.group()), name)

    def _word(self, word: str) -> str:
        parts = word.split("_") if _COMPILED.match(word) else [word]
        if all(len(part) < _SHORT or _NUMBER.fullmatch(part) or part.lower() in _public() for part in parts):
            return word
        return self._names.setdefault(word, f"name{len(self._names) + 1}")
