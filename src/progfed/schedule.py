"""Training strategies as values: a schedule is a tuple of phases, made by a short function.

Nothing else in the library asks which strategy is running: it asks a phase for its stage, its heads and what it trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from progfed import rng
from progfed.errors import UsageError


@dataclass(frozen=True)
class Phase:
    """Some rounds in which the same sub-model is trained in the same way.

    `trains` names the blocks that learn (1-based; empty: all of M^stage); the heads in use always learn.
    `heads` names the heads whose losses are summed (empty: the head of the stage).
    Warm-up rounds are extra to the budget T and do not advance the learning-rate schedule.
    """

    stage: int
    rounds: int
    trains: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    warmup: bool = False

    @property
    def trained_blocks(self) -> tuple[int, ...]:
        return self.trains or tuple(range(1, self.stage + 1))

    @property
    def used_heads(self) -> tuple[int, ...]:
        return self.heads or (self.stage,)


Schedule = tuple[Phase, ...]


def stage_lengths(rounds: int, stages: int) -> tuple[int, ...]:
    """The paper's rule: T_s = T/(2S) for s < S, and the rest for the full model; the sum is exactly T.

    Where T and S do not divide, borders are rounded down, and every stage has at least one round.

    >>> stage_lengths(1500, 3)
    (250, 250, 1000)
    >>> stage_lengths(7, 3)
    (1, 1, 5)
    """
    if stages < 1:
        raise UsageError(f"a model needs at least 1 stage, not {stages}")
    if rounds < stages:
        raise UsageError(f"{rounds} rounds are too few for {stages} stages: give at least one round to each")
    borders = [0, *(max(s, rounds * s // (2 * stages)) for s in range(1, stages)), rounds]
    return tuple(after - before for before, after in pairwise(borders))


def _lengths(rounds: int, stages: int, lengths: Sequence[int] | None) -> tuple[int, ...]:
    if lengths is None:
        return stage_lengths(rounds, stages)
    if len(lengths) != stages or sum(lengths) != rounds or min(lengths) < 1:
        raise UsageError(
            f"stage lengths {tuple(lengths)} must be {stages} positive numbers whose sum is the {rounds} rounds"
        )
    return tuple(lengths)


def end_to_end(rounds: int, *, stages: int) -> Schedule:
    """Train the full model from the first round: the baseline."""
    if rounds < 1:
        raise UsageError(f"training needs at least 1 round, not {rounds}")
    return (Phase(stages, rounds),)


def progressive(rounds: int, *, stages: int, lengths: Sequence[int] | None = None, warmup: int = 0) -> Schedule:
    """ProgFed (Algorithm 1): M^1, M^2, ... M^S, each after `warmup` extra rounds that train only E_s and G_s.

    >>> [(p.stage, p.rounds) for p in progressive(12, stages=3)]
    [(1, 2), (2, 2), (3, 8)]
    """
    stage_rounds = enumerate(_lengths(rounds, stages, lengths), start=1)
    return with_warmup(tuple(Phase(stage, length) for stage, length in stage_rounds), warmup)


def layerwise(rounds: int, *, stages: int) -> Schedule:
    """Only block E_s learns in its turn, with the input passed through the whole model (Sec. 4.5)."""
    return tuple(Phase(stages, length, trains=(s,)) for s, length in enumerate(stage_lengths(rounds, stages), start=1))


def partial(rounds: int, *, stages: int) -> Schedule:
    """E_1..E_s learn in stage s, but the supervision comes from the last head G_S (Sec. 4.5)."""
    return tuple(
        Phase(stages, length, trains=tuple(range(1, s + 1)))
        for s, length in enumerate(stage_lengths(rounds, stages), start=1)
    )


def mixed(rounds: int, *, stages: int) -> Schedule:
    """E_1..E_s learn from both G_s and G_S: `partial` and `progressive` together (Sec. 4.5)."""
    return tuple(
        replace(phase, heads=(s, stages) if s < stages else ())
        for s, phase in enumerate(partial(rounds, stages=stages), start=1)
    )


def random(rounds: int, *, stages: int, seed: int = 0) -> Schedule:
    """Each round of the progressive half trains a sub-model drawn at random, the rest the full one (Sec. 4.5)."""
    *early, last = stage_lengths(rounds, stages)
    draws = rng.numpy_generator(seed, "schedule").integers(1, stages + 1, size=sum(early))
    return (*(Phase(int(stage), 1) for stage in draws), Phase(stages, last))


def within(phase: Phase, deepest: int) -> Phase:
    """A round of `phase` for a client that can train M^deepest at most: that sub-model, with its own head.

    Of the blocks that the phase trains it trains those it holds; where it holds none of them, as in the warm-up of a
    deeper one, its last.

    >>> within(Phase(3, 5), 2), within(Phase(3, 5, trains=(3,), warmup=True), 2).trains
    (Phase(stage=2, rounds=5, trains=(), heads=(), warmup=False), (2,))
    """
    if phase.stage <= deepest:
        return phase
    trains = tuple(block for block in phase.trains if block <= deepest) or (phase.trains and (deepest,))
    return replace(phase, stage=deepest, trains=trains, heads=())


def length(schedule: Schedule) -> int:
    """T: the rounds of a schedule, warm-up aside."""
    return sum(phase.rounds for phase in schedule if not phase.warmup)


def rescale(schedule: Schedule, rounds: int) -> Schedule:
    """The same strategy over another number of rounds: stage lengths and warm-up keep their proportions.

    A stage keeps at least one round; the sum is exactly `rounds`, warm-up aside.
    """
    total = length(schedule)
    stages = {phase.stage for phase in schedule}
    if rounds < len(stages):
        raise UsageError(f"{rounds} rounds are too few for {len(stages)} stages: give at least one round to each")
    scaled: list[Phase] = []
    seen: set[int] = set()
    done = end = 0
    for phase in schedule:
        if phase.warmup:
            scaled.append(replace(phase, rounds=max(1, phase.rounds * rounds // total)))
            continue
        done += phase.rounds
        first = phase.stage not in seen
        seen.add(phase.stage)
        latest = rounds - len(stages - seen)
        border = min(max(done * rounds // total, end + first), latest)
        if border > end:
            scaled.append(replace(phase, rounds=border - end))
        end = max(end, border)
    return tuple(scaled)


def with_warmup(schedule: Schedule, rounds: int) -> Schedule:
    """The same schedule with this many warm-up rounds before each stage after the first; 0 takes them out."""
    if rounds < 0:
        raise UsageError(f"warm-up rounds cannot be negative: {rounds}")
    phases: list[Phase] = []
    for phase in (phase for phase in schedule if not phase.warmup):
        if rounds and phases and phase.stage > phases[-1].stage:
            phases.append(Phase(phase.stage, rounds, trains=(phase.stage,), warmup=True))
        phases.append(phase)
    return tuple(phases)
