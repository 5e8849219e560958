"""The verdict: the most valuable finding in a sentence, and the device's activity.

Without a finding it states measured shares of time, and calls a run healthy in which nothing is worth removing.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Final

from whystall.analysis.results import Device, Ledger
from whystall.analysis.run_results import RunSummary
from whystall.analysis.steadiness import least_computing, usual_ledger
from whystall.diagnosis.case import FEWEST_SAMPLED_STEPS
from whystall.diagnosis.detectors.hot_spot import HotSpot
from whystall.diagnosis.detectors.limits import FarFamily, FewBlocks
from whystall.diagnosis.finding import Diagnosis, Finding, Gain, Verdict
from whystall.diagnosis.gains import percent, speedup
from whystall.diagnosis.units import duration, times
from whystall.diagnosis.weighing import LEAST_SHARE
from whystall.vocabulary import step_parts

_LOSSES: Final[dict[str, str]] = {
    "communication": "communication that nothing hides",
    "memory": "copies that nothing hides",
    "idle_input": "waiting for input data",
    "idle_sync": "the host waiting for the device (synchronisation)",
    "idle_python": "the host running Python between operators",
    "idle_dispatch": "the host dispatching operators",
    "idle_launch": "the host in launch calls",
    "idle_allocator": "the host allocating memory",
    "idle_gc": "Python's garbage collection",
    "idle_dependency": "launched work waiting for something else",
    "idle_gap": "gaps between queued events",
    "idle_unknown": "idle time whose cause was not recorded",
}
# Below this share nothing is worth naming as the loss.
_SMALL: Final = 0.05
# If a cause worth this share of a step could be missed, the step's health is unknown.
_MOST_UNSEEN: Final = 0.2
_HIDDEN: Final = 0.9
_LARGE: Final = 0.2


_OF_HOST: Final = ("idle_python", "idle_dispatch", "idle_launch", "idle_gap")
"""Parts that a profiler lengthens."""


def ledger_verdict(
    devices: Sequence[Device], warnings: Sequence[str] = (), *, longer: float = 1.0, unseen: Container[int] = ()
) -> Verdict:
    """The verdict on the device that lost the largest share of its window; without one the first of ``warnings``.

    Recording made the steps ``longer`` by that factor. Ranks in ``unseen`` recorded only the host.
    """
    worst = least_computing(devices)
    if worst is None:
        reason = f"No step was recorded. {warnings[0]}" if warnings else "No step was recorded"
        return Verdict(summary=f"{reason}.", cause=None, gain=None, confidence=0.0)
    sentence = _of_host_alone(worst) if worst.rank in unseen else _sentence(worst, longer)
    measured = [device for device in devices if device.window_ns > 0]
    if len(measured) > 1:
        one_rank = len({device.rank for device in measured}) == 1
        which = f"device {worst.device}" if one_rank else f"the one of rank {worst.rank}"
        sentence = f"Of {len(measured)} devices, {which} computes least: {sentence[:1].lower()}{sentence[1:]}"
    ledger = usual_ledger(worst)
    decided = 1 - ledger.idle_unknown / max(ledger.total_ns, 1)
    return Verdict(
        rank=worst.rank,
        device=worst.device,
        summary=sentence,
        cause=None,
        gain=None,
        confidence=round(decided, 4),
    )


def _computing(device: Device) -> float:
    return usual_ledger(device).shares()["compute"]


def _large_loss(devices: Sequence[Device], diagnosis: Diagnosis, least: float, longer: float) -> str | None:
    """The loss that is too large for a healthy run, if any: in general, or for one whose cause could not be seen.

    Without marks of steps, for instance, the cost of Python is unknown.
    """
    worst = least_computing(devices)
    if worst is None:
        return None
    loss, share = max(_without_recording(_losses(usual_ledger(worst)), longer).items(), key=lambda item: item[1])
    unseen = any(one.id in _CAUSES_OF.get(loss, ())[:1] for one in diagnosis.abstained)
    return loss if share >= (least if unseen else _LARGE) else None


def finding_verdict(
    measured: Verdict,
    diagnosis: Diagnosis,
    step_ns: int,
    devices: Sequence[Device] = (),
    *,
    least: float = LEAST_SHARE,
    far: FarFamily | FewBlocks | None = None,
    hot: Sequence[HotSpot] = (),
    gap: str = "",
    longer: float = 1.0,
    shared: str = "",
) -> Verdict:
    """The verdict with the most valuable cause.

    ``measured`` is the verdict of the ledger of ``devices`` or of the samples, ``least`` the share of a step from which
    a cause was named, ``far`` the kernels that are farthest from the device's limit, ``hot`` the operators that take
    most of the time, ``gap`` the device's longest idle stretch, ``longer`` the factor by which recording lengthened the
    steps, ``shared`` the cost of other programs.
    """
    named = [finding for finding in diagnosis.findings if finding.severity != "info"]
    if not named:
        loss = _large_loss(devices, diagnosis, least, longer)
        return _without_cause(measured, diagnosis, loss, least, far, hot, gap, shared)
    best = named[0]
    ranks = best.scope.ranks
    return Verdict(
        summary=_cause_sentence(best, step_ns),
        basis=f"{shared} {measured.summary}".strip(),
        cause=best.id,
        gain=best.gain,
        confidence=best.confidence,
        rank=ranks[0] if len(ranks) == 1 and measured.rank is not None else measured.rank,
        device=measured.device if not ranks or measured.rank in ranks else None,
    )


def _cause_sentence(finding: Finding, step_ns: int) -> str:
    text = f"{finding.title}"
    if finding.gain is None:
        return f"{text}."
    gain = finding.gain
    step_ns = gain.step_ns or step_ns
    what = "a step would be " if gain.of == "step" else ""
    worth = f"{what}{times(gain.expected)} times as fast without it"
    saved = round(step_ns * (1 - 1 / gain.expected))
    cost = f" ({duration(saved)} of {duration(step_ns)})" if step_ns > 0 else ""
    return f"{text}{';' if ':' in text else ':'} {worth}{cost}."


# A recording whose graph explains less, or with too few steps, cannot be called healthy.
_EXPLAINED: Final = 0.9
_NOTHING: Final = Gain(floor=1.0, expected=1.0, ceiling=1.0, method="")


def _without_cause(
    measured: Verdict,
    diagnosis: Diagnosis,
    loss: str | None,
    least: float,
    far: FarFamily | FewBlocks | None,
    hot: Sequence[HotSpot],
    gap: str,
    shared: str,
) -> Verdict:
    perturbed = next((finding for finding in diagnosis.findings if finding.id == "capture.perturbed"), None)
    # A cost without a certain name is not healthy; a gain that may be nothing is no headline.
    unsure = [one for one in diagnosis.findings if one.gain is not None and one.gain.expected >= speedup(LEAST_SHARE)]
    sure = [one for one in unsure if (one.gain or _NOTHING).floor > 1]
    most = max(sure, key=lambda one: (one.gain or _NOTHING).expected, default=None)
    if loss is not None and most is not None and (most.gain or _NOTHING).expected < speedup(_SMALL):
        most = None  # a large unnamed loss is the headline, not a small one that has a name
    told = perturbed or most
    looked = f"no cause that was looked for is {'surely ' if unsure else ''}worth {percent(least)} of a step"
    if least > LEAST_SHARE:
        looked += ", and steps differ too much to see less"
    basis = " ".join(filter(None, [str(hot[0]) if hot else "", gap, measured.summary]))
    if told is not None:
        small = told is most and (told.gain or _NOTHING).expected < speedup(_SMALL)
        before = f"No cause is expected to be worth {percent(_SMALL)} of a step. " if small else ""
        summary, basis = f"{before}{told.title}.", basis if told is not perturbed else measured.summary
    elif diagnosis.fidelity is not None and loss is not None:
        summary = f"No cause was named for the largest loss, {_LOSSES[loss]}."
        basis = f"{_unjudged(loss, diagnosis)}{basis}"
    elif diagnosis.fidelity is not None and diagnosis.fidelity >= _EXPLAINED:
        summary = _nothing_found(diagnosis, looked, least, far, hot, unsure=bool(unsure))
        basis = measured.summary if summary.startswith("Healthy") else basis
    else:
        summary, basis = measured.summary, str(hot[0]) if hot else ""
    if told is not None:
        basis = f"{shared} {basis}".strip()
    elif shared:  # it comes first where there is nothing of the job's own
        summary, basis = shared, f"{summary} {basis}".strip()
    return Verdict(
        summary=summary,
        basis=basis,
        cause=None,
        gain=None,
        confidence=measured.confidence,
        rank=measured.rank,
        device=measured.device,
    )


def _nothing_found(
    diagnosis: Diagnosis,
    looked: str,
    least: float,
    far: FarFamily | FewBlocks | None,
    hot: Sequence[HotSpot],
    *,
    unsure: bool,
) -> str:
    """The sentence if no cause fires: healthy only if each expensive operator is known to be near its limit."""
    if any(one.id == "host.few-threads" for one in diagnosis.findings):
        return f"{looked[0].upper()}{looked[1:]}, yet a core stands idle: operators use fewer threads than cores."
    if least > _MOST_UNSEEN:
        unseen = f"less than {percent(least)} of a step" if least < 1 else "less than a whole step"
        return f"The recorded steps vary too much: a cause worth {unseen} would go unnoticed. Record more steps."
    if far is not None:
        return f"{looked[0].upper()}{looked[1:]}, yet the device could be faster: {far}."
    if unsure:
        return f"Nothing was found for certain: {looked}."
    if least > _SMALL or not hot or any(one.times is None for one in hot):
        return f"Nothing was found: {looked}."
    return f"Healthy: {looked}."


# The causes, or families of them, that a loss may come from.
_CAUSES_OF: Final[dict[str, tuple[str, ...]]] = {
    "communication": ("communication.",),
    "memory": ("host.pageable-copy", "memory.offload-thrash"),
    "idle_input": ("input.",),
    "idle_sync": ("host.sync",),
    "idle_python": ("host.python", "host.gc", "host.gil", "host.cpu-contention", "host.launch-bound", "episodic."),
    "idle_dispatch": ("host.launch-bound", "host.cpu-tensors"),
    "idle_launch": ("host.launch-bound",),
    "idle_allocator": ("host.allocator", "memory."),
    "idle_gc": ("host.gc",),
    "idle_dependency": ("communication.",),
    "idle_gap": ("host.launch-bound",),
}


def _unjudged(loss: str, diagnosis: Diagnosis) -> str:
    """The causes of a loss that could not be looked for, and the missing signals."""
    missing: dict[str, list[str]] = {}
    for one in diagnosis.abstained:
        if one.id.startswith(_CAUSES_OF.get(loss, ())):
            causes = missing.setdefault(" and ".join(one.missing_signals), [])
            causes += [one.id] if one.id not in causes else []
    parts = [f"{', '.join(causes)} (for want of {signals})" for signals, causes in missing.items()]
    return f"Not judged: {'; '.join(parts)}. " if parts else ""


def run_verdict(runs: Sequence[RunSummary]) -> Verdict:
    """The coarse verdict of a run that has samples but no trace: shares of the steps on the host."""
    worst = max(runs, key=lambda run: (run.median_ns, -run.rank))
    ordered = sorted(worst.shares.items(), key=lambda item: -item[1])
    parts = ", ".join(f"{percent(share)} {step_parts.WORDS[name]}" for name, share in ordered[:3] if share >= _SMALL)
    slow = worst.slow_ns / max(worst.total_ns, 1)
    if worst.measured < FEWEST_SAMPLED_STEPS:
        return Verdict(summary=_few_steps(worst), cause=None, gain=None, confidence=0.0, rank=worst.rank)
    text = f"From samples alone: a step takes {duration(worst.median_ns)} in the median; its time is {parts}"
    if slow >= _SMALL:
        text += f"; slow steps lose {percent(slow)} of the run"
    return Verdict(summary=f"{text}.", cause=None, gain=None, confidence=0.5, rank=worst.rank)


def _few_steps(run: RunSummary) -> str:
    """The sentence on a run that ended before its steps show the usual length."""
    shortest = min(run.durations_ns, default=run.median_ns)
    span = duration(run.max_ns) if shortest == run.max_ns else f"{duration(shortest)} to {duration(run.max_ns)}"
    steps = "1 step was" if run.measured == 1 else f"{run.measured} steps were"
    why = f"with fewer than {FEWEST_SAMPLED_STEPS} nothing is said of what is usual"
    return f"Too short to judge: {steps} measured ({span}), and {why}."


def _without_recording(shares: dict[str, float], longer: float) -> dict[str, float]:
    """The shares of a step that is not recorded: the cost of recording lies in the host's parts."""
    host = sum(shares.get(part, 0.0) for part in _OF_HOST)
    kept = max(host - (1 - 1 / longer), 0.0) / host if host else 0.0
    left = {part: share * (kept if part in _OF_HOST else 1.0) for part, share in shares.items()}
    whole = 1 - sum(shares.values()) + sum(left.values())  # with the devices' compute
    return {part: share / max(whole, 1e-9) for part, share in left.items()}


def _sentence(device: Device, longer: float) -> str:
    who = "CPU" if device.kind == "cpu" else "GPU" if device.kind == "gpu" else "device"
    losses = sorted(_losses(usual_ledger(device)).items(), key=lambda item: -item[1])
    name, share = losses[0]
    of = "the time" if longer <= 1 else f"a recorded step, which takes {longer:.2f} times as long as others"
    computing = f"the {who} computes {percent(_computing(device))} of {of}"
    hidden = _hidden_communication(device)
    if share < _SMALL:
        text = f"{computing}; nothing else reaches 5 %, the largest is {_LOSSES[name]} ({percent(share)})"
    else:
        text = f"{computing}; the largest loss is {_LOSSES[name]} ({percent(share)})"
        second, second_share = losses[1]
        if second_share >= _SMALL:
            text += f", then {_LOSSES[second]} ({percent(second_share)})"
    text += hidden
    return text[0].upper() + text[1:] + "."


def _of_host_alone(device: Device) -> str:
    """The sentence on a job whose device was not recorded."""
    computing = percent(_computing(device))
    return f"The host runs operators {computing} of the time; the device was not recorded."


def _losses(ledger: Ledger) -> dict[str, float]:
    return {part: share for part, share in ledger.shares().items() if part != "compute"}


def _hidden_communication(device: Device) -> str:
    """Communication that is large but hidden, which invites the wrong conclusion."""
    if not device.communication_ns:
        return ""
    share = device.communication_ns / device.window_ns
    overlap = device.compute_communication_overlap_ns / device.communication_ns
    if share < _LARGE or overlap < _HIDDEN:
        return ""
    return f"; communication runs {percent(share)} of the time, {percent(overlap)} of it hidden behind compute"
