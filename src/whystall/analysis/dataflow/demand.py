"""Calls whose results nothing reads: dead code of a step.

Demand goes back from what is certainly or perhaps read: what leaves the operators (a number, a list, numpy's arrays, a
collective, a call of another library), what is in memory that the trace does not see freed, gradients, and draws of
random numbers, which change those after them. A call is dead if nothing of that needs its results.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from whystall.analysis.dataflow.chosen_calls import ChosenCall, ChosenCalls
from whystall.analysis.dataflow.recorded import tensors_in


def unread(chosen: ChosenCalls) -> list[int]:
    """The places of the calls whose results nothing reads; none where tensors may have been read unseen.

    Memory is known to be freed where another call makes it again, or where each of torch's objects that showed it shows
    other memory later. In the last step little is known to be freed.
    """
    if chosen.reads_unseen:
        return []
    graph = _Demand()
    for place, call in enumerate(chosen.calls):
        graph.add(place, call)
    alive = graph.alive(chosen.calls)
    return [
        place
        for place, call in enumerate(chosen.calls)
        if place not in alive and not call.blank and not call.outside and (call.made or call.written)
    ]


@dataclass(slots=True)
class _Demand:
    """The calls that read the results of each call."""

    reads: list[set[int]] = field(default_factory=list)
    """Per call the calls whose results it reads."""
    _writers: dict[int, list[int]] = field(default_factory=dict)
    """Per storage, since it was made, the calls that wrote it."""
    _shown_by: dict[int, set[int]] = field(default_factory=dict)
    """Per storage, since it was made, the objects of torch's that showed it."""
    _shows: dict[int, int] = field(default_factory=dict)
    """Per object the storage that it showed last."""
    _dtypes: dict[int, set[str]] = field(default_factory=dict)
    """Per storage, since it was made, the types of the results in it."""
    _of_others: set[int] = field(default_factory=set)
    """Calls that write memory which the trace did not see made, or which is lent to Python."""

    def add(self, place: int, call: ChosenCall) -> None:
        """Follows a call."""
        self._leave_freed(call)
        needed: set[int] = set()
        if not call.shows_only:
            for storage in {one.storage for one in tensors_in(call.node.given)}:
                needed.update(self._writers.get(storage, ()))
        self.reads.append(needed)
        if call.outside or call.lent:
            for one in (*tensors_in(call.node.given), *tensors_in(call.node.returned)):
                self._of_others.update(self._writers.get(one.storage, ()))
        for storage in call.written:
            if storage in self._writers:
                self._writers[storage].append(place)
            else:
                self._of_others.add(place)
        for storage in call.made:
            self._writers[storage] = [place]
            self._shown_by[storage], self._dtypes[storage] = set(), set()
        for one in (*tensors_in(call.node.given), *tensors_in(call.node.returned)):
            self._shows[one.identity] = one.storage
            self._shown_by.setdefault(one.storage, set()).add(one.identity)
            self._dtypes.setdefault(one.storage, set()).add(one.dtype)

    def _leave_freed(self, call: ChosenCall) -> None:
        """Forgets the writers of memory that has become another tensor's: a number in an expression (``2 * x``)."""
        for one in tensors_in(call.node.given):
            if not one.shape and one.storage in self._writers and one.dtype not in self._dtypes[one.storage]:
                del self._writers[one.storage]
                self._shown_by[one.storage], self._dtypes[one.storage] = set(), set()

    def alive(self, calls: list[ChosenCall]) -> set[int]:
        """The calls whose results are read."""
        found = {place for place, call in enumerate(calls) if _is_needed(call)} | self._of_others
        for storage, writers in self._writers.items():
            if any(self._shows[one] == storage for one in self._shown_by[storage]):
                found.update(writers)  # nothing shows that this memory was freed
        left = list(found)
        while left:
            fresh = self.reads[left.pop()] - found
            found |= fresh
            left += fresh
        return found


def _is_needed(call: ChosenCall) -> bool:
    """Whether a call is needed for more than its results, or its results for more than what reads them."""
    unknown = call.opaque or call.random or call.sized or call.backward
    return unknown or not (call.made or call.written or call.shows_only)
