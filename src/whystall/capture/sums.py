"""Contents of tensors, as sums of their bytes: whether a call has the same inputs as before, without keeping them."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

from whystall.capture.faults import suppress
from whystall.capture.readable import is_readable
from whystall.capture.the_jobs import items_in

_MOST_TENSORS: Final = 32
_MOST_BYTES: Final = 64 << 20
_OF_LARGE: Final = 8 << 20
"""Bytes to read of a larger tensor."""
_DEEPEST: Final = 4
_MOST_PLACES: Final = 8192
_LEAST_FLOATS: Final = 2
_LEAST_WHOLES: Final = 8
"""Numbers of a sample: fewer repeat by chance."""

Sum = tuple[object, ...]


def sum_of(torch: Any, value: object) -> Sum | None:
    """Sums of all tensors in a value, and its plain numbers and words; ``None`` where it holds other objects.

    An unreadable tensor (other devices, subclasses) never equals another, nor do numbers of a job that diverged: all
    NaNs look alike. For more than 64 MiB a part is read, and whether it is the same tensor, unwritten.
    """
    out: list[object] = []
    return tuple(out) if _add(torch, value, out, _DEEPEST) and len(out) <= 8 * _MOST_TENSORS else None


def columns_of(torch: Any, value: object) -> list[int]:
    """A sum of each column of the first matrix of whole numbers in a call's arguments: of tokens, place by place."""
    for item in items_in(value) or []:
        if isinstance(item, torch.Tensor) and item.dtype in (torch.int64, torch.int32) and item.dim() == 2:
            plain = type(item) is torch.Tensor and item.device.type == "cpu" and item.shape[1] <= _MOST_PLACES
            with torch.no_grad():
                return _row_sums(item.T.contiguous()) if plain and is_readable(item) else []
        if not isinstance(item, torch.Tensor) and (found := columns_of(torch, item)):
            return found
    return []


def rows_of(torch: Any, value: object, *, most: int = _OF_LARGE, begins: bool = False) -> list[int]:
    """A sum of each row of the first batch in a call's arguments: of each sample, for ``most`` numbers in all.

    Larger samples have none, or only the beginning of the first one with ``begins``. Tensors that stand for others
    (``torch.func``) are unknown, and rows of few numbers are equal by chance.
    """
    for item in tensors_in(torch, value):
        plain = type(item) is torch.Tensor and item.device.type == "cpu" and item.layout is torch.strided
        if not plain or item.is_quantized or item.is_complex() or item.dim() < 2 or not item.numel():
            continue
        size = item[0].numel()
        if size < (_LEAST_FLOATS if item.is_floating_point() else _LEAST_WHOLES):
            continue
        with torch.no_grad(), suppress(RuntimeError, TypeError):
            part = item.detach()[: max(most // size, int(begins))]
            return _row_sums(part.resolve_neg().flatten(1)[:, :most].contiguous()) if is_readable(part) else []
    return []


def sizes_of_rows(torch: Any, value: object, count: int) -> list[float]:
    """The sum of absolute values in each row of a call's first output with ``count`` rows."""
    for item in tensors_in(torch, value):
        plain = item.device.type == "cpu" and item.layout is torch.strided and item.is_floating_point()
        if plain and item.dim() > 1 and len(item) == count and is_readable(item):
            with torch.no_grad():
                return item.detach().flatten(1).abs().sum(1, dtype=torch.float64).tolist()  # type: ignore[no-any-return]
    return []


def bytes_of(tensor: Any) -> memoryview:
    """The bytes of a contiguous tensor in place, to be read at once.

    Not by ``numpy()``: the storage of the job's tensor could never be resized again.
    """
    size = tensor.numel() * tensor.element_size()
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B") if size else memoryview(b"")


def _row_sums(rows: Any) -> list[int]:
    """A sum of each row of a contiguous matrix."""
    held, size = bytes_of(rows), rows[0].numel() * rows.element_size() if len(rows) else 0
    return [zlib.crc32(held[at * size : (at + 1) * size]) for at in range(len(rows))]


def stands_for_others(torch: Any) -> bool:
    """Whether tensors stand for others just now: within a dispatch mode, or a transformation (vmap, grad)."""
    functorch = getattr(torch._C, "_functorch", None)  # noqa: SLF001
    transforms = functorch is not None and functorch.peek_interpreter_stack() is not None
    return transforms or bool(torch._C._len_torch_dispatch_stack())  # noqa: SLF001


def unseen(torch: Any) -> AbstractContextManager[None]:
    """A context in which the job's own modes and subclasses (``__torch_function__``) do not see our calls."""
    hidden: AbstractContextManager[None] = torch._C.DisableTorchFunction()  # noqa: SLF001 - there is no public one
    return hidden


def tensors_in(torch: Any, value: object, deep: int = _DEEPEST) -> Iterator[Any]:
    """The plain tensors in a value, in order."""
    if isinstance(value, torch.Tensor):
        if not value.is_nested:
            yield value
        return
    for item in (items_in(value) or ()) if deep > 0 else ():
        yield from tensors_in(torch, item, deep - 1)


def is_differentiated(torch: Any, value: object, deep: int = _DEEPEST) -> bool:
    """Whether a value holds a tensor that autograd would go back from."""
    if isinstance(value, torch.Tensor):
        return bool(value.requires_grad)
    return deep > 0 and any(is_differentiated(torch, item, deep - 1) for item in items_in(value) or ())


def is_derived_from(torch: Any, value: object) -> bool:
    """Whether the gradient of an input is wanted, as of the coordinates of a solution."""
    return any(type(one) is torch.Tensor and one.is_leaf and one.requires_grad for one in tensors_in(torch, value))


def _add(torch: Any, value: object, out: list[object], deep: int) -> bool:
    if value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.device | torch.memory_format):
        out.append(value)
        return True
    if isinstance(value, torch.Tensor):
        return _add_tensor(torch, value, out)
    if deep == 0 or len(out) > 8 * _MOST_TENSORS:
        return False
    items = items_in(value)
    if items is None:
        return False
    if issubclass(type(value), dict):
        items = [*dict.keys(value), *items]  # type: ignore[arg-type]
    out.append(type(value).__name__)
    return all(_add(torch, item, out, deep - 1) for item in items)


def _add_tensor(torch: Any, tensor: Any, out: list[object]) -> bool:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or stands_for_others(torch):
        return False
    if tensor.is_nested:  # a transformer's encoder makes it of padded sequences: it has no shape
        return False
    parts = _parts_of(torch, tensor)
    if parts is None or tensor.layout is torch.strided:
        return parts is not None and _add_strided(torch, tensor, out)
    out += [str(tensor.layout), tuple(tensor.shape)]
    return all(_add_strided(torch, part, out) for part in parts)


def _parts_of(torch: Any, tensor: Any) -> tuple[Any, ...] | None:
    """The plain tensors that make up one; ``None`` for layouts that are not known."""
    with torch.no_grad():
        if tensor.layout is torch.strided:
            return (tensor,)
        if tensor.layout is torch.sparse_coo:
            return (tensor._indices(), tensor._values())  # noqa: SLF001 - the public ones refuse what is not coalesced
        if tensor.layout is torch.sparse_csr:
            return (tensor.crow_indices(), tensor.col_indices(), tensor.values())
    return None


def _once(tensor: Any) -> Any:
    """A tensor without repeated (expanded) elements."""
    for dim, (stride, size) in enumerate(zip(tensor.stride(), tensor.shape, strict=True)):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _stays(tensor: Any, once: Any, out: list[object]) -> bool:
    """Whether writes to a large tensor are visible; then its identity, and its number of writes."""
    if tensor.is_inference() or not _as_it_lies(once).is_contiguous():
        return False
    out += [tensor.data_ptr(), tensor.stride(), tensor._version]  # noqa: SLF001 - what autograd itself asks
    return True


def _as_it_lies(tensor: Any) -> Any:
    """A tensor with its dimensions in the order of memory: of a matrix that is turned around, the matrix."""
    return tensor.permute(sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim)))


def _some_of(tensor: Any, size: int) -> Any:
    """Every so manyth element: another tensor that has come into its place differs in some of them."""
    return _as_it_lies(tensor).view(-1)[:: -(-size // _OF_LARGE) | 1].contiguous()  # odd: not one column of a matrix


def _add_strided(torch: Any, tensor: Any, out: list[object]) -> bool:
    if tensor.device.type != "cpu" or tensor.is_quantized or tensor.is_complex():
        return False
    with torch.no_grad():
        if not is_readable(tensor):
            return False
        once = _once(tensor.detach().resolve_neg())
        size = once.numel() * once.element_size()
        if size <= _MOST_BYTES:
            flat = once.contiguous().view(-1)
        elif _stays(tensor, once, out):
            flat = _some_of(once, size)
        else:
            return False
        if tensor.is_floating_point() and flat.numel() and bool(flat[[0, flat.numel() // 2, -1]].isnan().all()):
            return False
        values = bytes_of(flat)
    out += [tuple(tensor.shape), str(tensor.dtype), zlib.crc32(values), zlib.adler32(values)]
    return True
