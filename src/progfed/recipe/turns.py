"""Which round comes next, in a schedule whose phases may end early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from progfed.recipe.growth import Growth, Watch
from progfed.recipe.rate import Moment
from progfed.recipe.recipe import Recipe
from progfed.schedule import Phase, Schedule, goes_on, length
from progfed.tensors import Tensors, of_parts, sub


@dataclass(frozen=True)
class Turn:
    """A round to come.

    Args:
        number: Its number in the run, counted from 1 with warm-up included.
        phase: Its phase.
        index: The place of that phase in the schedule.
        offset: How many rounds of the phase come before it.
        moment: Where it stands, for the learning rate.
    """

    number: int
    phase: Phase
    index: int
    offset: int
    moment: Moment


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What a round that is over means for its phase.

    `closes` tells its last round, `freed` how many rounds of its budget the phase then left; `signal` is what the
    growth policy looks at, and `watch` what it knows from now on.
    """

    closes: bool
    freed: int
    signal: float | None
    watch: Watch


def next_turn(recipe: Recipe, number: int, watch: Watch) -> Turn | None:
    """The round after round `number`, in the schedule as it turned out so far; None after the last."""
    return turn_at(realised(recipe.schedule, recipe.growth, watch.lengths), number + 1)


def turn_at(schedule: Schedule, number: int) -> Turn | None:
    """Round `number` of a schedule, counted from 1 with warm-up included; None after the last."""
    before = done = 0
    for index, phase in enumerate(schedule):
        offset = number - before - 1
        counts = not (phase.warmup or phase.hold)  # whether its rounds advance the learning-rate schedule
        if offset < phase.rounds:
            done += counts * offset
            held = sum(phase.rounds for phase in schedule if phase.hold and not phase.warmup)
            stage_t, stage_of = _in_its_stage(schedule, index, offset)
            moment = Moment(done, max(1, length(schedule) - held), stage_t, stage_of, phase.warmup, phase.stage)
            return Turn(number, phase, index, offset, moment)
        before += phase.rounds
        done += counts * phase.rounds
    return None


def _in_its_stage(schedule: Schedule, index: int, offset: int) -> tuple[int, int]:
    """The place of a round in its phase, and the rounds of that; a stage with an `overlap` counts as one phase."""
    phase = schedule[index]
    if index and goes_on(schedule[index - 1], phase):
        return schedule[index - 1].rounds + offset, schedule[index - 1].rounds + phase.rounds
    if index + 1 < len(schedule) and goes_on(phase, schedule[index + 1]):
        return offset, phase.rounds + schedule[index + 1].rounds
    return offset, phase.rounds


def ending(turn: Turn, recipe: Recipe, watch: Watch, *, loss: float, before: Tensors, after: Tensors) -> Ending:
    """Whether a round was the last of its phase: by the schedule, or by a policy that has seen its loss and its step.

    `before` and `after` are the parameters on both sides of the step, without buffers in `after`.
    """
    done, growth = turn.offset + 1, recipe.growth
    closes = done == turn.phase.rounds
    if growth is not None and _may_end(turn.phase, turn.index, recipe.schedule):
        newest = of_parts(after, [f"E{max(turn.phase.trained_blocks)}"])
        watch = growth.see(watch, loss, sub(newest, before))
        closes = closes or growth.ends(watch, done)
    return Ending(
        closes=closes,
        freed=turn.phase.rounds - done if closes else 0,
        signal=watch.signal[-1] if watch.signal else None,
        watch=Watch(lengths=(*watch.lengths, done)) if closes and growth is not None else watch,
    )


def _may_end(phase: Phase, place: int, schedule: Schedule) -> bool:
    """Whether a policy may end a phase early: not warm-up, and not the last phase, which gets what others left."""
    return not phase.warmup and place < len(schedule) - 1


def realised(schedule: Schedule, growth: Growth | None, lengths: Sequence[int]) -> Schedule:
    """The schedule as it turned out so far, and as it will be from there.

    Args:
        schedule: The schedule as planned.
        growth: The policy that ended phases early.
        lengths: The rounds of the phases that are over; the last phase of the schedule gets those they did not use.

    >>> from progfed.recipe.growth import Plateau
    >>> planned = Phase(1, 5), Phase(2, 5), Phase(3, 5)
    >>> [phase.rounds for phase in realised(planned, Plateau(), [3, 4])]
    [3, 4, 8]
    """
    if growth is None or not lengths:
        return schedule
    over = tuple(replace(phase, rounds=rounds) for phase, rounds in zip(schedule, lengths, strict=False))
    if len(over) == len(schedule):
        return over
    *coming, last = schedule[len(over) :]
    freed = sum(phase.rounds for phase in schedule[: len(over)]) - sum(lengths)
    return (*over, *coming, replace(last, rounds=last.rounds + freed * growth.keep_total))


def earliest(schedule: Schedule, growth: Growth) -> Schedule:
    """The schedule as it would be if every phase ended as early as the policy allows."""
    lengths = [
        min(phase.rounds, growth.shortest) if _may_end(phase, place, schedule) else phase.rounds
        for place, phase in enumerate(schedule[:-1])
    ]
    return realised(schedule, growth, lengths)
