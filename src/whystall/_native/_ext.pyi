"""Types of the compiled extension (the headers, ``scanner.hpp`` and its neighbours, say what each thing does)."""

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
    def __init__(self, keep: Sequence[str], event_limit: int, value_limit: int, begins: int = 0) -> None: ...
    def feed(self, data: bytes | bytearray | memoryview) -> None: ...
    def read(self, file: int, size: int, start: int = -1) -> int: ...
    def is_between_events(self) -> bool: ...
    def take_over(self, later: Scanner) -> bool: ...
    def finish(self) -> None: ...
    def counts(self) -> Counts: ...
    def take_tables(self) -> list[TableColumns]: ...
    def names(self) -> list[str]: ...
    def texts(self, ids: NDArray[np.int32]) -> list[str]: ...
    def text_count(self) -> int: ...
    def threads(self) -> list[tuple[int | str | None, int | str | None]]: ...
    def kept(self) -> list[tuple[str, bytes]]: ...

class Sieve:
    def __init__(self, longest: int) -> None: ...
    def read(self, file: int, size: int, wanted: Callable[[str], bool]) -> tuple[int, bytes] | None: ...
    def feed(self, data: bytes, wanted: Callable[[str], bool]) -> bytes: ...
    def finish(self) -> bytes: ...

class SnapshotReader:
    def __init__(self) -> None: ...
    def read(self, file: int, size: int) -> int: ...
    def feed(self, data: bytes) -> None: ...
    def finish(self) -> None: ...
    def done(self) -> bool: ...
    def failure(self) -> tuple[str, str, int, int] | None: ...
    def is_snapshot(self) -> bool: ...
    def events(self) -> dict[str, NDArray[Any]]: ...
    def frames(self) -> dict[str, NDArray[Any]]: ...
    def segments(self) -> dict[str, NDArray[Any]]: ...
    def blocks(self) -> dict[str, NDArray[Any]]: ...
    def annotations(self) -> dict[str, NDArray[Any]]: ...
    def traces(self, key: str) -> list[NDArray[np.uint32]]: ...
    def segment_rows(self, key: str) -> NDArray[np.uint32]: ...
    def annotation_rows(self) -> NDArray[np.uint32]: ...
    def pools(self) -> list[tuple[int, int]]: ...
    def texts(self) -> list[str]: ...
    def plain(self, key: str) -> Any: ...

def pickle_trap(data: bytes) -> str | None:
    """What would make a pickle of plain values cost more than its size says; ``None`` where nothing would.

    A key that is a list, dict or tuple; values that hold themselves, are nested too deep or hold each other too many
    times; and whatever is no pickle of plain values.
    """

def match_allocations(
    move: NDArray[np.int8], address: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int]: ...
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

class Pauses:
    """The time in the garbage collector, as one of ``gc.callbacks``. No Python runs in a call."""

    def __init__(self) -> None: ...
    def __call__(self, phase: str, counts: dict[str, int]) -> None: ...
    def take_us(self) -> int:
        """Microseconds of pauses since the last call."""

def call_on_main_thread(pending: Callable[[], object]) -> bool:
    """Has the main thread call something as soon as it runs Python; ``False`` when too much waits for it already."""

def hear_exit(exit: Callable[[int], object], listener: Callable[[], object]) -> None:  # noqa: A002
    """Calls ``listener`` whenever ``exit`` (`os._exit`) is about to end the process; the function stays what it is.

    The latest listener is called alone. Raises ``TypeError`` where ``exit`` is no function of Python's own.
    """

def shorten_interval(get: Callable[[], float], set: Callable[[float], None], seconds: float) -> None:  # noqa: A002
    """Makes Python give its lock up after ``seconds``, until it is restored or the program chooses another interval.

    ``get`` and ``set`` are `sys.getswitchinterval` and `sys.setswitchinterval`, which stay what they are and go on to
    tell and take what the program would see without it.
    """

def restore_interval() -> bool:
    """Whether the interval was shortened, and is again as it was."""

def interval_in_force(get: Callable[[], float]) -> float:
    """The interval in seconds that counts, shortened or not; ``get`` is `sys.getswitchinterval`."""

class HeardCalls:
    """Hears the calls of one object, of a class written in Python, until `remove` is called.

    ``before`` is given the arguments and the named ones, ``after`` nothing, and only where the call returned. What they
    raise is dropped. Nothing is written to the object or its class, and neither is kept alive; the listeners are. One
    object is heard by its latest listener alone. Raises ``TypeError`` for an object that cannot be heard.
    """

    def __init__(
        self,
        object: object,  # noqa: A002
        before: Callable[[tuple[Any, ...], dict[str, Any]], object],
        after: Callable[[], object],
    ) -> None: ...
    def remove(self) -> None:
        """Hears no more; may be called twice."""
