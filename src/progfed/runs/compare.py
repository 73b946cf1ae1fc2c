"""Does growing pay? A growing run, end-to-end training over as many rounds, and end-to-end training for its bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from progfed.errors import UsageError
from progfed.runs.directory import Record, RunDirectory
from progfed.runs.experiment import Experiment
from progfed.runs.plan import Known, plan
from progfed.schedule import Schedule, end_to_end, length


def compared(
    experiment: Experiment, *, baseline: Experiment | None = None
) -> tuple[Experiment, Experiment, Experiment]:
    """The three runs that tell whether growing pays: end-to-end, growing, and end-to-end for the bytes of growing.

    The growing run is the experiment as it is, the first is its `baseline` or else `whole_of` it, the third is
    `equal_bytes` of the two. Where no plan can know the bytes of the growing run, this is refused: finish the first
    two, and take `equal_bytes` with the `measured_rounds`.

    Args:
        experiment: The growing run.
        baseline: End-to-end training to compare it with; None: `whole_of` the experiment.
    """
    whole = checked_baseline(experiment, baseline)
    rounds = planned_rounds(experiment, whole)
    if rounds is None:
        raise UsageError(
            f"what {experiment.run} sends is only known when it is finished: use measured_rounds() and equal_bytes()"
        )
    return whole, experiment, equal_bytes(experiment, whole, rounds)


def checked_baseline(experiment: Experiment, baseline: Experiment | None = None) -> Experiment:
    """The end-to-end run that a growing one is compared with: the one given, or `whole_of` the experiment."""
    if is_end_to_end(experiment.recipe.schedule):
        raise UsageError(
            f"run {experiment.run!r} of {experiment.name} trains the full model from the first round, so it is a "
            "baseline itself: compare a run whose schedule grows, such as progressive(…)"
        )
    whole = baseline or whole_of(experiment)
    if not is_end_to_end(whole.recipe.schedule):
        raise UsageError(
            f"run {whole.run!r}, the baseline of {experiment.run!r}, does not train the full model from the first "
            "round: give a baseline that does, or none"
        )
    return whole


def whole_of(experiment: Experiment) -> Experiment:
    """The same experiment with end-to-end training over as many rounds, as `RUN-end-to-end`."""
    return _end_to_end(experiment, f"{experiment.run}-end-to-end", length(experiment.recipe.schedule))


def equal_bytes(growing: Experiment, whole: Experiment, rounds: int) -> Experiment:
    """End-to-end training that ends after so many rounds, and its learning rate with it, as `RUN-equal-bytes`.

    Args:
        growing: The run whose bytes are spent.
        whole: End-to-end training in full, from which everything but the rounds is taken.
        rounds: How many rounds the bytes buy: `planned_rounds` or `measured_rounds`.
    """
    return replace(_end_to_end(whole, f"{growing.run}-equal-bytes", rounds), baseline=whole.run)


def is_end_to_end(schedule: Schedule) -> bool:
    """Whether every round trains the whole of the last model, with its own head alone."""
    last = schedule[-1].stage
    return all(phase.stage == last and not phase.trains and phase.used_heads == (last,) for phase in schedule)


def planned_rounds(growing: Experiment, whole: Experiment) -> int | None:
    """How many rounds of end-to-end training the bytes of a growing run buy; None where no plan can know its bytes.

    They are rounded up, so that end-to-end training is never given less. No plan knows bytes where the length of a
    message depends on what is in it, where a policy decides when to grow, where patience may end a run early, and where
    clients train as much of the model as they can.
    """
    known = Known()
    plans = [plan(one, known) for one in (growing, whole)]
    early = growing.recipe.growth is not None or growing.patience is not None
    if early or not all(planned["exact"] for planned in plans):
        return None
    ours, theirs = (_sent(planned["total"]) for planned in plans)
    return -(-ours * length(whole.recipe.schedule) // theirs)


def measured_rounds(growing: Sequence[Path], whole: Sequence[Path]) -> int:
    """The same from the folders of finished runs, one of each for every seed; the most that the bytes of a seed buy.

    Rounds are counted along the end-to-end run of the same seed, which draws the same clients in the same rounds; each
    one after its last is taken to cost no more than its cheapest.
    """
    return max(_rounds_for(ours, theirs) for ours, theirs in zip(growing, whole, strict=True))


def _rounds_for(growing: Path, whole: Path) -> int:
    """After how many rounds an end-to-end run has sent at least as much as the whole of a growing one."""
    spent = _sent(RunDirectory(growing).records()[-1]["total"])
    costs = [_sent(record) for record in RunDirectory(whole).records()]
    sent = list(accumulate(costs))
    return bisect_left(sent, spent) + 1 if spent <= sent[-1] else len(sent) + -(-(spent - sent[-1]) // min(costs))


def _sent(cost: Record) -> int:
    return int(cost["down_bytes"] + cost["up_bytes"])


def _end_to_end(experiment: Experiment, run: str, rounds: int) -> Experiment:
    schedule = end_to_end(rounds, stages=experiment.recipe.schedule[-1].stage)
    return replace(experiment, run=run, baseline="", recipe=replace(experiment.recipe, schedule=schedule, growth=None))
