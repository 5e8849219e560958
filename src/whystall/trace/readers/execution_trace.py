"""Execution traces of PyTorch's `ExecutionTraceObserver`: which tensors each operator was given, and which it returned.

Chakra's JSON form (schema 1.1) and the form before it (1.0) are read. A node has no time: `rf_id` is the "Record
function id" that Kineto's recording of the same run has for the operator. Source of the format:
torch/csrc/profiler/standalone/execution_trace_observer.cpp.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias

from whystall.json_text import NotJsonError, first_json
from whystall.trace.errors import InputError
from whystall.trace.files import Limits, gunzipped, is_gzip, opened

_CHUNK: Final = 1 << 20
_HEAD: Final = 1 << 16
_NODES: Final = '"nodes"'
_MOST_NODES: Final = 1 << 22
_MOST_DEPTH: Final = 4
_TENSOR: Final = "Tensor("
_LIST: Final = "GenericList["
_FIELDS: Final = 6
_ROOT: Final = "[pytorch|profiler|execution_trace"
_MOST_SHIFTED: Final = 0.5
_LONGEST_DEVICE: Final = 32
_LARGEST: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as an operator saw it.

    ``storage`` is its memory and ``identity`` torch's object, by number: one that was freed may return.
    """

    storage: int
    offset: int
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None
    device: str = "cpu"
    identity: int = 0


Value: TypeAlias = "Tensor | bool | int | float | str | list[Value] | None"


@dataclass(frozen=True, slots=True)
class Node:
    """One call of an operator: ``number`` grows in the order in which calls began; ``parent`` is the one around it.

    ``backward`` marks a node of autograd; ``rf_id`` and ``sequence`` are 0 and -1 where there are none.
    """

    number: int
    name: str
    parent: int
    thread: int
    rf_id: int
    sequence: int
    schema: str
    backward: bool
    given: tuple[Value, ...]
    returned: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class ExecutionTrace:
    """The calls in the order in which they began, and the problems of the file."""

    nodes: list[Node]
    warnings: tuple[str, ...] = ()


def read_execution_trace(path: Path, limits: Limits | None = None) -> ExecutionTrace:
    """The calls of an execution trace, plain or gzip. Raises `InputError` where a file is none.

    Damage ends the reading: the part before it is kept, with a sentence on it.
    """
    bounds = limits or Limits()
    warnings: list[str] = []
    nodes: dict[int, Node] = {}
    refused = 0
    for value in _elements(path, bounds, warnings):
        node = _node(value)
        if node is None:
            refused += 1
        elif len(nodes) >= min(_MOST_NODES, bounds.events):
            warnings.append(f"only the first {len(nodes):,} operators are read")
            break
        else:
            nodes[node.number] = node
    if not nodes:
        raise InputError(f"{path.name} is no execution trace of PyTorch's: it has no nodes that can be read")
    if refused:
        warnings.append(f"{refused:,} nodes are none that PyTorch writes and are left out")
    _leave_ended_parents(nodes)
    return ExecutionTrace([nodes[number] for number in sorted(nodes)], tuple(warnings))


def _leave_ended_parents(nodes: dict[int, Node]) -> None:
    """Moves a call out of one that had ended before it, to the call around that one.

    torch writes a call as it ends. One that begins on a thread and ends on another (a collective of gloo's) leaves
    torch's own stack of open calls shifted, so that later calls show a parent that is over.
    """
    ended = {number: place for place, number in enumerate(nodes)}
    roots = {number for number, node in nodes.items() if node.name.startswith(_ROOT)}
    inner = [node for node in nodes.values() if node.parent in nodes and node.parent not in roots | {node.number}]
    early = [node for node in inner if ended[node.parent] < ended[node.number]]
    if len(early) > _MOST_SHIFTED * len(inner):
        return  # a file in another order
    for node in early:
        parent = node.parent
        while parent in nodes and parent not in roots and ended[parent] < ended[node.number]:
            above = nodes[parent].parent
            if above == parent:
                break
            parent = above
        nodes[node.number] = replace(node, parent=parent)


def _elements(path: Path, limits: Limits, warnings: list[str]) -> Iterator[Any]:
    """The elements of the list of nodes, one after the other; the text is never held whole."""
    with opened(path) as (file, size):
        packed = is_gzip(file)
        pieces = gunzipped(file, warnings) if packed else iter(lambda: file.read(_CHUNK), b"")
        most = min(limits.raw_bytes, max(limits.unpacked_times * size, limits.unpacked_bytes) if packed else size)
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        text, done, begun = "", 0, False
        for piece in pieces:
            done += len(piece)
            if done > most:
                warnings.append(f"the file unpacks to more than what is read ({most:,} bytes)")
                return
            text += decode(piece)
            if not begun:
                text, begun = _behind_the_head(text)
                if not begun and len(text) > _HEAD:
                    return
            at = 0
            while begun:
                at = _next_element(text, at)
                if text[at : at + 1] == "]":
                    return
                try:
                    value, at = first_json(text, at)
                except NotJsonError:
                    break  # the rest of it is in the next piece, or nowhere
                yield value
            text = text[at:]
            if begun and len(text) > limits.value_bytes:
                break
        if begun:
            warnings.append("the file ends within its nodes, or is damaged: what stands before is kept")


def _behind_the_head(text: str) -> tuple[str, bool]:
    """The text after the bracket that opens the list of nodes, and whether that bracket was found."""
    name = text.find(_NODES)
    bracket = text.find("[", name) if name >= 0 else -1
    return (text[bracket + 1 :], True) if bracket >= 0 else (text, False)


def _next_element(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at


def _node(value: Any) -> Node | None:
    """A node of either form; ``None`` where it is none."""
    try:
        listed = value.get("attrs") or []
        attributes = {one["name"]: one.get("value") for one in listed} if isinstance(listed, list) else {}
        given, returned = _tensors(value, "inputs", "input"), _tensors(value, "outputs", "output")
        parent = value.get("ctrl_deps", value.get("parent"))
        return Node(
            number=_whole(value["id"]),
            name=str(value["name"]),
            parent=_whole(parent),
            thread=_whole(attributes.get("tid", value.get("tid", 0))),
            rf_id=_whole(attributes.get("rf_id", value.get("rf_id", 0))),
            sequence=_whole(attributes.get("seq_id", value.get("seq_id", -1))),
            schema=str(attributes.get("op_schema", value.get("op_schema", ""))),
            backward=attributes.get("scope", value.get("scope")) == 1,
            given=given,
            returned=returned,
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None


def _tensors(node: Any, key: str, prefix: str) -> tuple[Value, ...]:
    """The arguments or the results of a node."""
    listed = node[key]
    if isinstance(listed, dict):  # since schema 1.1
        values, shapes, types, strides = (listed.get(name, []) for name in ("values", "shapes", "types", "strides"))
    else:
        values, shapes, types, strides = listed, node[f"{prefix}_shapes"], node[f"{prefix}_types"], []
    return tuple(
        _value(value, _at(shapes, place), str(_at(types, place) or ""), _at(strides, place), _MOST_DEPTH)
        for place, value in enumerate(values)
    )


def _value(value: Any, shape: Any, kind: str, strides: Any, depth: int) -> Value:
    if kind.startswith(_TENSOR):
        identity, storage, offset, *_, device = value[:_FIELDS]
        steps = _sizes(strides) if isinstance(strides, list) and len(strides) == len(shape) else None
        dtype = kind[len(_TENSOR) : -1]
        place, where = (_whole(storage), _whole(offset)), str(device)[:_LONGEST_DEVICE]
        return Tensor(*place, _sizes(shape), dtype, steps, where, _whole(identity))
    if kind.startswith(_LIST) and isinstance(value, list) and depth:
        kinds = kind[len(_LIST) : -1].split(",")
        return [
            _value(one, _at(shape, place), _at(kinds, place) or "", _at(strides, place), depth - 1)
            for place, one in enumerate(value)
        ]
    return value if isinstance(value, (bool, int, float)) else None if value == "<None>" else str(value)[:_HEAD]


def _at(values: Any, place: int) -> Any:
    return values[place] if isinstance(values, list) and place < len(values) else None


def _sizes(values: Any) -> tuple[int, ...]:
    return tuple(_whole(one) for one in values)


def _whole(value: Any) -> int:
    """A number that torch can write. Raises `ValueError` for another one, `TypeError` for none."""
    if type(value) is not int:
        raise TypeError(f"no whole number: {value!r:.100}")
    if not -1 <= value < _LARGEST:
        raise ValueError(f"out of bounds: {value!r:.100}")
    return value
