"""torch's rules of the caching allocator written down a second time: lists that are searched from end to end.

Nothing here is kept in order or linked; every question is answered by looking at all blocks. It shares only the events
and the settings with what it is the oracle of.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from whystall.memory.allocator import Allocation, Completion, Free
from whystall.memory.allocator_settings import AllocatorSettings

KB, MB = 1024, 1024 * 1024


@dataclass(eq=False)
class Piece:
    at: int
    size: int
    state: str  # used, waiting, free or void
    since: int = 0


@dataclass(eq=False)
class Segment:
    owner: int
    small: bool
    stream: int
    growing: bool
    pieces: list[Piece] = field(default_factory=list)

    def tidy(self, searches: int) -> None:
        """Neighbours that are both free, or both void, become one."""
        out: list[Piece] = []
        for piece in self.pieces:
            if out and out[-1].state == piece.state and piece.state in ("free", "void"):
                out[-1] = Piece(out[-1].at, out[-1].size + piece.size, piece.state, searches)
            else:
                out.append(piece)
        self.pieces = out


class Naive:
    def __init__(self, settings: AllocatorSettings) -> None:
        self.settings = settings
        self.segments: list[Segment] = []
        self.owners: dict[Hashable, Piece | None] = {}
        self.searches: dict[tuple[int, bool], int] = {}
        self.next = 1 << 40
        self.retries = 0

    # what is held, counted anew each time
    def total(self, *states: str) -> int:
        return sum(p.size for s in self.segments for p in s.pieces if p.state in states)

    @property
    def row(self) -> tuple[int, int, int]:
        return self.total("used"), self.total("used", "waiting"), self.total("used", "waiting", "free")

    def rounded(self, size: int) -> int:
        if size < 512:
            return 512
        megabytes = size // MB
        parts = self.settings.roundup_power2_divisions[min(int(math.log2(megabytes)) if megabytes else 0, 15)]
        if parts > 1 and size > 512 * parts:
            power = 1
            while power * 2 <= size:
                power *= 2
            while power < size:
                floor = 2 ** int(math.log2(size))
                power += floor // parts
            return power
        return (size + 511) // 512 * 512

    def candidates(self, owner: int, small: bool, stream: int) -> Iterator[tuple[Segment, Piece]]:
        for segment in self.segments:
            if (segment.owner, segment.small, segment.stream) == (owner, small, stream):
                for piece in segment.pieces:
                    yield segment, piece

    def find(self, owner: int, small: bool, stream: int, size: int) -> tuple[Segment, Piece] | None:
        if self.settings.garbage_collection_threshold and self.settings.limit_bytes is not None:
            self.searches[owner, small] = self.searches.get((owner, small), 0) + 1
        fitting = [(s, p) for s, p in self.candidates(owner, small, stream) if p.state == "free" and p.size >= size]
        fitting.sort(key=lambda one: (one[1].size, one[1].at))
        if not fitting:
            return None
        chosen = 0
        if self.settings.expandable_segments:
            while chosen + 1 < len(fitting) and self.reach(*fitting[chosen + 1]) < self.reach(*fitting[chosen]):
                chosen += 1
        limit = self.settings.max_split_size_bytes
        if limit is not None:
            found = fitting[chosen][1].size
            if size < limit and found >= limit:
                return None
            if size >= limit and found >= size + self.settings.max_non_split_rounding_bytes:
                return None
        return fitting[chosen]

    @staticmethod
    def reach(segment: Segment, piece: Piece) -> int:
        index = segment.pieces.index(piece)
        rest = segment.pieces[index + 1 : index + 2]
        return piece.size + (rest[0].size if rest and rest[0].state == "void" else 0)

    def new(self, owner: int, small: bool, stream: int, size: int) -> tuple[Segment, Piece] | None:
        asked = (
            2 * MB if small else self.settings.large_segment_bytes if size < 10 * MB else -(-size // (2 * MB)) * 2 * MB
        )
        held = self.row[2]
        if self.settings.limit_bytes is not None and held + asked > self.settings.limit_bytes:
            return None
        if self.settings.expandable_segments:
            return self.grow(owner, small, stream, size)
        if self.settings.device_bytes is not None and held + asked > self.settings.device_bytes:
            return None
        segment = Segment(owner, small, stream, growing=False, pieces=[Piece(self.next, asked, "free")])
        self.next += asked
        self.segments.append(segment)
        return segment, segment.pieces[0]

    def grow(self, owner: int, small: bool, stream: int, size: int) -> tuple[Segment, Piece] | None:
        page = 2 * MB if small else self.settings.large_segment_bytes
        chosen = self.growing(owner, small, stream, size)
        if chosen is None:
            whole = (1 << 46) if self.settings.device_bytes is None else self.settings.device_bytes * 9 // 8
            whole = -(-whole // page) * page
            self.next = -(-self.next // page) * page
            segment = Segment(owner, small, stream, growing=True, pieces=[Piece(self.next, whole, "void")])
            self.next += whole
            self.segments.append(segment)
            chosen = segment, segment.pieces[0].at
        segment, start = chosen
        # pages become free memory from the start on, until the free piece that begins there is large enough
        while True:
            at = next(i for i, p in enumerate(segment.pieces) if p.at <= start < p.at + p.size)
            piece = segment.pieces[at]
            if piece.state == "free" and piece.size >= size:
                return segment, piece
            index = at if piece.state == "void" else at + 1
            if index >= len(segment.pieces) or segment.pieces[index].state != "void":
                return None
            void = segment.pieces[index]
            missing = size - (piece.size if piece.state == "free" else 0)
            pages = -(-min(missing, void.size) // page) * page
            if self.settings.device_bytes is not None and self.row[2] + pages > self.settings.device_bytes:
                return None
            parts = [Piece(void.at, pages, "free"), Piece(void.at + pages, void.size - pages, "void")]
            segment.pieces[index : index + 1] = [part for part in parts if part.size]
            self.tidy(segment)

    def growing(self, owner: int, small: bool, stream: int, size: int) -> tuple[Segment, int] | None:
        """The lowest place where free and void pieces in a row, of which one is void, have room."""
        voids = [(p.at, s, p) for s, p in self.candidates(owner, small, stream) if p.state == "void"]
        for _, segment, void in sorted(voids, key=lambda one: one[0]):
            first = segment.pieces.index(void)
            if first and segment.pieces[first - 1].state == "free":
                first -= 1
            room = 0
            for piece in segment.pieces[first:]:
                if piece.state not in ("free", "void") or room >= size:
                    break
                room += piece.size
            if room >= size:
                return segment, segment.pieces[first].at
        return None

    def tidy(self, segment: Segment) -> None:
        segment.tidy(self.searches.get((segment.owner, segment.small), 0))

    def drop(self, segment: Segment) -> None:
        self.segments = [one for one in self.segments if one is not segment]

    def whole(self, owner: int, small: bool) -> list[Segment]:
        return [
            s
            for s in self.segments
            if (s.owner, s.small) == (owner, small) and not s.growing and [p.state for p in s.pieces] == ["free"]
        ]

    def collect(self) -> None:
        limit = self.settings.limit_bytes
        assert limit is not None
        most = int(self.settings.garbage_collection_threshold * limit)
        missing = self.row[2] - most
        if missing <= 0:
            return
        now = self.searches.get((0, False), 0)
        freed = 1
        while missing > 0 and freed:
            lonely = self.whole(0, False)
            if not lonely:
                return
            mean = sum(now - s.pieces[0].since for s in lonely) / len(lonely)
            freed = 0
            for segment in lonely:
                if now - segment.pieces[0].since >= mean:
                    freed += segment.pieces[0].size
                    self.drop(segment)
            missing -= freed

    def give_some(self, owner: int, small: bool, stream: int, size: int) -> bool:
        limit = self.settings.max_split_size_bytes
        if limit is None:
            return False
        wanted = max(size, limit)
        free = [(p.size, p.at, s) for s, p in self.candidates(owner, small, stream) if p.state == "free"]
        order = sorted(free, key=lambda one: one[:2])
        large = [one for one in order if one[0] >= wanted]
        if large and not large[0][2].growing:
            self.drop(large[0][2])
            return True
        given = 0
        for size_of, _, segment in reversed(order[: len(order) - len(large)]):
            if given >= wanted or size_of < limit:
                break
            if not segment.growing:
                given += size_of
                self.drop(segment)
        return given >= wanted

    def give_all(self) -> None:
        for segment in self.segments:
            for piece in segment.pieces:
                if piece.state == "waiting":
                    piece.state = "free"
                    piece.since = self.searches.get((segment.owner, segment.small), 0)
            self.tidy(segment)
        for small in (True, False):
            for segment in self.whole(0, small):
                self.drop(segment)
        for segment in [s for s in self.segments if s.growing and s.owner == 0]:
            page = 2 * MB if segment.small else self.settings.large_segment_bytes
            pieces: list[Piece] = []
            for piece in segment.pieces:
                begin, end = -(-piece.at // page) * page, (piece.at + piece.size) // page * page
                if piece.state != "free" or end <= begin:
                    pieces.append(piece)
                    continue
                parts = [
                    Piece(piece.at, begin - piece.at, "free"),
                    Piece(begin, end - begin, "void"),
                    Piece(end, piece.at + piece.size - end, "free"),
                ]
                pieces += [part for part in parts if part.size]
            segment.pieces = pieces
            self.tidy(segment)
            if [p.state for p in segment.pieces] == ["void"]:
                self.drop(segment)

    def allocate(self, event: Allocation) -> bool:
        if event.size_bytes == 0:
            self.owners[event.key] = None
            return True
        size = self.rounded(event.size_bytes)
        where = event.pool, size <= MB, event.stream, size
        found = self.find(*where)
        if found is None:
            if self.settings.garbage_collection_threshold and self.settings.limit_bytes is not None:
                self.collect()
            found = self.new(*where)
            if found is None and self.give_some(*where):
                found = self.new(*where)
            if found is None:
                self.give_all()
                self.retries += 1
                found = self.new(*where)
        if found is None:
            return False
        segment, piece = found
        rest = piece.size - size
        limit = self.settings.max_split_size_bytes
        if segment.small or self.settings.expandable_segments:
            split = rest >= 512
        else:
            split = (limit is None or size < limit) and rest > MB
        taken = Piece(piece.at, size if split else piece.size, "used")
        now = self.searches.get((segment.owner, segment.small), 0)
        left = [Piece(piece.at + size, rest, "free", now)] if split else []
        index = segment.pieces.index(piece)
        segment.pieces[index : index + 1] = [taken, *left]
        self.owners[event.key] = taken
        return True

    def free(self, event: Free) -> None:
        piece = self.owners[event.key] if event.pending else self.owners.pop(event.key)
        if piece is None:
            self.owners.pop(event.key, None)
            return
        piece.state = "waiting"
        if not event.pending:
            self.settle(piece)

    def complete(self, event: Completion) -> None:
        piece = self.owners.pop(event.key, None)
        if piece is not None and piece.state == "waiting":
            self.settle(piece)

    def settle(self, piece: Piece) -> None:
        for segment in self.segments:
            if piece in segment.pieces:
                piece.state = "free"
                piece.since = self.searches.get((segment.owner, segment.small), 0)
                self.tidy(segment)


def course(
    events: list[Allocation | Free | Completion], settings: AllocatorSettings
) -> tuple[list[tuple[int, int, int]], int | None, int]:
    """Allocated, active and reserved after each event, the event that found no room, and how often it was retried."""
    naive = Naive(settings)
    rows: list[tuple[int, int, int]] = []
    for number, event in enumerate(events):
        if isinstance(event, Allocation):
            if not naive.allocate(event):
                return rows, number, naive.retries
        elif isinstance(event, Free):
            naive.free(event)
        else:
            naive.complete(event)
        rows.append(naive.row)
    return rows, None, naive.retries
