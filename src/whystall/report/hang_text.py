"""The cause of a hang as text: rank, operation, line, and the open questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whystall.fleet.hang_results import Hang, Hangs, Kind, RankCall, Wait
from whystall.report.format import count, duration, plural
from whystall.report.names import clean, middle_cut

_LONGEST_NAME = 160
_MOST_RANKS = 12  # ranks that a line lists
_MOST_CALLS = 4  # calls of single ranks that are listed
_LEAST_WAIT_NS = 1_000_000_000  # a shorter wait depends on when the dumps were made


def render_hangs(found: Hangs) -> str:
    """The text for a terminal."""
    ranks = f"{plural(len(found.ranks), 'rank')}, {plural(found.entries, 'operation')} recorded"
    parts = [_verdict(found), ranks]
    parts += [_hang(number, hang) for number, hang in enumerate(found.hangs, start=1)]
    if found.missing_ranks:
        parts.append(f"No dump of {_ranks(found.missing_ranks)}: what they did is not known.")
    if found.blank and (found.hangs or found.unfinished):
        parts.append(_was_off(found))
    if found.notes:
        parts.append("\n".join(f"- {clean(note)}" for note in found.notes))
    return "\n\n".join(parts) + "\n"


def summarize(found: Hangs) -> str:
    """The one sentence on top."""
    return _verdict(found)


def _verdict(found: Hangs) -> str:
    if found.hangs:
        return _sentence(found.hangs[0])
    if found.unfinished:
        return "Some operations had not ended, and the dumps do not show which rank holds them up."
    if found.blank:
        return _was_off(found)
    return "No operation was waiting when the dumps were written."


def _was_off(found: Hangs) -> str:
    """The sentence that ranks recorded nothing, and the setting that records the next time."""
    whose = "" if found.blank == found.ranks else f" of {_ranks(found.blank)}"
    return (
        f"PyTorch's flight recorder{whose} was off and held no operation: TORCH_FR_BUFFER_SIZE=2000 in the job's "
        "environment (older torch: TORCH_NCCL_TRACE_BUFFER_SIZE=2000) lets the next run name the rank and the "
        "operation that was missing."
    )


def _sentence(hang: Hang) -> str:
    """The rank at fault and its fault, in one sentence."""
    what = f"{clean(hang.operation, _LONGEST_NAME)} no. {count(hang.sequence)} of group {_group(hang)}"
    who = _ranks(hang.ranks or hang.waiting)
    late = "later than the others" if hang.late_ns is None else f"{duration(hang.late_ns)} after the others"
    never = f"never came to {what}: {_waits(hang)} in it"
    if hang.shift is Wait.LEFT_OUT:
        never = f"left out {what}: {_waits(hang)} for a later call that does not come"
    said = {
        Kind.MISSING_ENTER: never,
        Kind.LATE_ENTER: f"came to {what} {late}",
        Kind.MISMATCH: f"asked for another {hang.differs} than the others in {what}{_how(hang)}",
        Kind.DIFFERENT_ORDER: f"came to several groups in another order than those that wait in {what}",
        Kind.MISSING_EXIT: f"entered {what} and did not come out of it",
        Kind.UNKNOWN: f"{'waits' if len(hang.waiting) == 1 else 'wait'} in {what}, and no dump shows for whom",
    }
    return f"{who[:1].upper()}{who[1:]} {said[hang.kind]}."


def _how(hang: Hang) -> str:
    if hang.shift is Wait.LEFT_OUT:
        return ", as one does that leaves a call out"
    return ", as one does that makes a call too many" if hang.shift is Wait.EXTRA else ""


def _hang(number: int, hang: Hang) -> str:
    return "\n".join([f"{number}. {hang.kind}: {_sentence(hang)}", *(f"   {line}" for line in _details(hang))])


def _details(hang: Hang) -> Iterator[str]:
    if hang.call is not None:
        yield f"{'the others' if hang.could_be is None else f'rank {hang.call.rank}'}: {_call(hang.call)}"
    said = "last call there" if hang.kind is Kind.MISSING_ENTER and hang.shift is None else "asked for"
    for call in hang.others[:_MOST_CALLS]:
        yield f"rank {call.rank}, {said}: {_call(call)}"
    if len(hang.others) > _MOST_CALLS:
        yield f"and {plural(len(hang.others) - _MOST_CALLS, 'more rank')}"
    if hang.kind is Kind.MISSING_ENTER and not hang.others and hang.shift is None:
        yield "nothing of theirs is recorded there"
    if hang.waited_ns is not None and hang.waited_ns >= _LEAST_WAIT_NS:
        yield f"the first to enter has waited for {duration(hang.waited_ns)} or longer"
    if hang.undumped:
        yield f"without a dump: {_ranks(hang.undumped)}"
    if hang.by_order:
        yield "counted by the order of calls: the recorder's own numbers count what it does not record"
    if hang.could_be is not None:
        yield f"could be: {hang.could_be}"
    if hang.because is not None:
        yield f"because of {hang.because + 1}: they wait there"


def _call(call: RankCall) -> str:
    sizes = ", ".join(str(list(size)) for size in call.sizes[:_MOST_CALLS]) or "no tensor"
    more = f" and {len(call.sizes) - _MOST_CALLS} more" if len(call.sizes) > _MOST_CALLS else ""
    types = ", ".join(sorted({clean(one, _LONGEST_NAME) for one in call.types}))
    what = f"{clean(call.operation, _LONGEST_NAME)} {count(call.sequence)} of {middle_cut(sizes, _LONGEST_NAME)}{more}"
    told = f"{what} {types}" if types else what
    if call.place is None:
        return f"{told}, the line is not recorded"
    line = f"{clean(call.place.file, _LONGEST_NAME)}:{call.place.line}"
    return f"{told} at {line} ({clean(call.place.symbol, _LONGEST_NAME)})"


def _group(hang: Hang) -> str:
    name = clean(hang.group, _LONGEST_NAME) or "default"
    described = clean(hang.description, _LONGEST_NAME)
    return f"{name} ({described})" if described and described != "undefined" else name


def _waits(hang: Hang) -> str:
    return f"{_ranks(hang.waiting)} {'waits' if len(hang.waiting) == 1 else 'wait'}"


def _ranks(ranks: Sequence[int]) -> str:
    """The ranks in words, those in a row as a range."""
    if not ranks:
        return "no rank"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    shown = words[:_MOST_RANKS] + ([f"and {len(words) - _MOST_RANKS} more"] if len(words) > _MOST_RANKS else [])
    return f"ranks {', '.join(shown)}"
