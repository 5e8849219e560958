"""Types of the compiled extension (see ``scanner.hpp`` and ``sweep.hpp`` for what each thing does)."""

from collections.abc import Callable, Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

class TableColumns(TypedDict):
    category: str
    metadata: bool
    rows: int
    phase: NDArray[np.int8]
    name: NDArray[np.int32]
    thread: NDArray[np.signedinteger[Any]]
    start: NDArray[np.int64]
    duration: NDArray[np.signedinteger[Any]]
    arguments: list[tuple[str, int, NDArray[np.int32] | None, NDArray[Any]]]

class Counts(TypedDict):
    events: int
    bytes: int
    not_objects: int
    without_phase: int
    broken: int
    broken_bytes: int
    quoted_times: int
    nanosecond_times: int
    unnamed_arguments: int
    unfinished_bytes: int
    found_events: bool
    is_json: bool
    top_is_array: bool
    closed: bool
    over_limit: bool

class Scanner:
    def __init__(self, keep: Sequence[str], event_limit: int, value_limit: int) -> None: ...
    def feed(self, data: bytes | bytearray | memoryview) -> None: ...
    def read(self, file: int, size: int) -> int: ...
    def finish(self) -> None: ...
    def counts(self) -> Counts: ...
    def take_tables(self) -> list[TableColumns]: ...
    def names(self) -> list[str]: ...
    def texts(self, ids: NDArray[np.int32]) -> list[str]: ...
    def text_count(self) -> int: ...
    def threads(self) -> list[tuple[int | str | None, int | str | None]]: ...
    def kept(self) -> list[tuple[str, bytes]]: ...

def nest(
    thread: NDArray[np.int32], start: NDArray[np.int64], end: NDArray[np.int64], rank: NDArray[np.uint8]
) -> tuple[NDArray[np.uint32], NDArray[np.int32], NDArray[np.int64]]: ...
def nearest_marked(
    order: NDArray[np.uint32], parent: NDArray[np.int32], marked: NDArray[np.uint8]
) -> NDArray[np.int32]: ...
def subtree_sums(
    order: NDArray[np.uint32], parent: NDArray[np.int32], values: NDArray[np.int64]
) -> NDArray[np.int64]: ...
def outermost(order: NDArray[np.uint32], parent: NDArray[np.int32], label: NDArray[np.int32]) -> NDArray[np.uint8]: ...
def thread_states(
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    order: NDArray[np.uint32],
    state: NDArray[np.uint8],
    inherited: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]: ...
def thread_spans(
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    order: NDArray[np.uint32],
    state: NDArray[np.uint8],
    inherited: NDArray[np.bool_],
) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.int32]]: ...
def replay(
    duration: NDArray[np.int64],
    delay: NDArray[np.int64],
    first: NDArray[np.uint64],
    source: NDArray[np.uint32],
    lag: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]: ...
def class_states(
    start: NDArray[np.int64], end: NDArray[np.int64], klass: NDArray[np.uint8]
) -> tuple[NDArray[np.int64], NDArray[np.uint8]]: ...
def call_on_main_thread(call: Callable[[], object]) -> bool:
    """Has the main thread call something as soon as it runs Python; ``False`` when too much waits for it already."""

class TimedCall:
    """A callable that tells ``before`` and ``after`` when ``function`` begins and ends, and leaves no frame.

    With ``tells_whose``, ``before`` is given the first argument of the call: the object whose method it is. With
    ``tells_result``, ``after`` is given what the call returned (``None`` when it raised).
    """

    def __init__(
        self,
        function: Callable[..., Any],
        before: Callable[..., object],
        after: Callable[..., object],
        *,
        tells_whose: bool = False,
        tells_result: bool = False,
    ) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any: ...
    @property
    def __wrapped__(self) -> Callable[..., Any]: ...
