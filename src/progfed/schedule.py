"""Training strategies as values: a schedule is a tuple of phases, made by a short function.

Nothing else in the library asks which strategy is running: it asks a phase for its stage, its heads and what it trains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from progfed import rng
from progfed.errors import UsageError


@dataclass(frozen=True)
class Phase:
    """Some rounds in which the same sub-model is trained in the same way.

    Args:
        stage: The sub-model: M^stage.
        rounds: How many rounds the phase lasts.
        trains: The blocks that learn, counted from 1; empty: all of M^stage. The heads in use always learn.
        heads: The heads whose losses are summed; empty: the head of the stage.
        warmup: Whether these are warm-up rounds: extra to the budget T, and without advancing the learning rate.
        hold: Whether the learning rate stays at its first value during the phase, whose rounds do count towards T.
        at_once: How many blocks a client trains at once at most. Where the phase trains more, groups of so many learn
            one after the other in each round, each with the head on its last block, and those before it stand still.
            Weak clients then train all blocks, in smaller groups than others. 0: there is no limit, and weak clients
            train the first blocks alone.
    """

    stage: int
    rounds: int
    trains: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    warmup: bool = False
    hold: bool = field(default=False, metadata={"later": True})
    at_once: int = field(default=0, metadata={"later": True})

    @property
    def trained_blocks(self) -> tuple[int, ...]:
        """The numbers of the blocks that learn."""
        return self.trains or tuple(range(1, self.stage + 1))

    @property
    def used_heads(self) -> tuple[int, ...]:
        """The stages whose heads are used."""
        if len(self.turns) == 1:
            return self.heads or (self.stage,)
        return tuple(dict.fromkeys(head for turn in self.turns for head in turn.used_heads))

    @property
    def turns(self) -> tuple[Phase, ...]:
        """What a client trains in a round, one after the other: the phase itself, unless that is too much at once.

        >>> [(turn.stage, turn.trains) for turn in Phase(3, 5, at_once=2).turns]
        [(2, (1, 2)), (3, (3,))]
        """
        blocks = self.trained_blocks
        if not 0 < self.at_once < len(blocks):
            return (self,)
        groups = [blocks[first : first + self.at_once] for first in range(0, len(blocks), self.at_once)]
        return tuple(self._turn(group) for group in groups)

    def _turn(self, group: tuple[int, ...]) -> Phase:
        """The part of the phase that trains these blocks: with its heads that stand on them, or one on the last."""
        heads = tuple(head for head in self.heads if head in group)
        return replace(self, stage=group[-1], trains=group, heads=heads, at_once=0)


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
    """The given stage lengths, checked, or those of the paper's rule."""
    if lengths is None:
        return stage_lengths(rounds, stages)
    if len(lengths) != stages or sum(lengths) != rounds or min(lengths) < 1:
        raise UsageError(
            f"stage lengths {tuple(lengths)} must be {stages} positive numbers whose sum is the {rounds} rounds"
        )
    return tuple(lengths)


def end_to_end(rounds: int, *, stages: int) -> Schedule:
    """Train the full model from the first round: the baseline.

    Args:
        rounds: T, the number of rounds.
        stages: The number of stages of the model.

    Returns:
        A schedule of one phase.
    """
    if rounds < 1:
        raise UsageError(f"training needs at least 1 round, not {rounds}")
    return (Phase(stages, rounds),)


def progressive(
    rounds: int,
    *,
    stages: int,
    lengths: Sequence[int] | None = None,
    warmup: int = 0,
    hold: bool = True,
    overlap: int = 2,
) -> Schedule:
    """ProgFed (Algorithm 1): train the sub-models M^1, M^2, ... M^S one after the other.

    What goes beyond the paper is on by default, because it needs no tuning to pay; `as_published` leaves it out.

    Args:
        rounds: T, the number of rounds without warm-up.
        stages: S, the number of stages of the model.
        lengths: The rounds of each stage, with the sum `rounds`; None: the paper's T/(2S), and the rest for M^S.
        warmup: Extra rounds at the start of each stage after the first, in which only E_s and G_s learn.
        hold: Whether the recipe's learning-rate schedule, such as a cosine, begins only with the full model, and keeps
            its first rate before. With `hold=False` it runs over all rounds, as in the paper; the full model, which is
            the last to be trained, then begins at a fraction of the rate.
        overlap: The first rounds of each stage after the first in which the head of the stage before is trained, too,
            and its loss is added, so that the blocks keep what they know until the new head is of use. They are part
            of the stage's rounds; a shorter stage is all overlap. A model that keeps one head at every stage, as a
            symmetric U-Net does, has no other head to train.

    Returns:
        A schedule: a tuple of phases.

    >>> [(p.stage, p.rounds) for p in progressive(12, stages=3, overlap=0)]
    [(1, 2), (2, 2), (3, 8)]
    >>> [(p.stage, p.rounds, p.used_heads) for p in progressive(12, stages=2)]
    [(1, 3, (1,)), (2, 2, (1, 2)), (2, 7, (2,))]
    """
    if overlap < 0:
        raise UsageError(f"overlap is a number of rounds, 0 or more, not {overlap}")
    alone = [
        Phase(stage, length, hold=hold and stage < stages)
        for stage, length in enumerate(_lengths(rounds, stages, lengths), start=1)
    ]
    return with_warmup(tuple(phase for one in alone for phase in _overlapped(one, overlap)), warmup)


def _overlapped(phase: Phase, overlap: int) -> tuple[Phase, ...]:
    """The rounds of a stage, in the first of which the head of the stage before is trained, too."""
    both = min(overlap, phase.rounds) if phase.stage > 1 else 0
    first = replace(phase, rounds=both, heads=(phase.stage - 1, phase.stage))
    rest = replace(phase, rounds=phase.rounds - both)
    return tuple(one for one in (first, rest) if one.rounds)


def goes_on(before: Phase, phase: Phase) -> bool:
    """Whether a phase is the rest of the stage whose first rounds, with two heads, were the phase before it."""
    return before.heads == (phase.stage - 1, phase.stage) and replace(before, rounds=phase.rounds, heads=()) == phase


def _without_overlap(schedule: Schedule) -> tuple[Schedule, tuple[int, ...]]:
    """The same stages with one head at a time, and for how many rounds each of them had two."""
    phases: list[Phase] = []
    overlaps: list[int] = []
    for phase in schedule:
        if phases and goes_on(phases[-1], phase):
            before = phases[-1]
            overlaps[-1] = before.rounds
            phases[-1] = replace(phase, rounds=before.rounds + phase.rounds)
        else:
            phases.append(phase)
            overlaps.append(0)
    return tuple(phases), tuple(overlaps)


def as_published(rounds: int, *, stages: int, lengths: Sequence[int] | None = None, warmup: int = 0) -> Schedule:
    """`progressive` as in the paper: one learning-rate schedule over all rounds, and one head at a time.

    Args:
        rounds: T, the number of rounds without warm-up.
        stages: S, the number of stages of the model.
        lengths: The rounds of each stage, with the sum `rounds`; None: T/(2S), and the rest for M^S.
        warmup: Extra rounds at the start of each stage after the first, in which only E_s and G_s learn.

    >>> [(p.stage, p.rounds) for p in as_published(12, stages=3)]
    [(1, 2), (2, 2), (3, 8)]
    """
    return progressive(rounds, stages=stages, lengths=lengths, warmup=warmup, hold=False, overlap=0)


def freezing(
    rounds: int, *, stages: int, lengths: Sequence[int] | None = None, again: int = 0, hold: bool = True
) -> Schedule:
    """Grow as `progressive` does, but train only the newest block with its head: the blocks before it stand still.

    Nothing of a frozen block is kept for a backward pass and nothing of it is sent back, so the highest memory of the
    whole run is that of one block's training and not that of the full model's. What an early block has not learned in
    its own stage, it does not learn later.

    Args:
        rounds: T, the number of rounds.
        stages: S, the number of stages of the model.
        lengths: The rounds of each stage, with the sum `rounds`; None: as equal as they can be, since each block learns
            in its own stage only.
        again: How many blocks before the newest learn once more.
        hold: Whether the recipe's learning-rate schedule begins only with the last stage, as for `progressive`.

    >>> [(p.stage, p.rounds, p.trains) for p in freezing(9, stages=3, again=1)]
    [(1, 3, (1,)), (2, 3, (1, 2)), (3, 3, (2, 3))]
    """
    if again < 0:
        raise UsageError(f"again is how many earlier blocks learn once more, 0 or more, not {again}")
    if lengths is None:
        stage_lengths(rounds, stages)  # refuses fewer rounds than stages
        lengths = [rounds * s // stages - rounds * (s - 1) // stages for s in range(1, stages + 1)]
    return tuple(
        Phase(stage, length, trains=tuple(range(max(1, stage - again), stage + 1)), hold=hold and stage < stages)
        for stage, length in enumerate(_lengths(rounds, stages, lengths), start=1)
    )


def every_head(rounds: int, *, stages: int) -> Schedule:
    """Train the full model with the heads of all stages from the first round; their losses are summed.

    A client that is too weak for the full model trains all the heads up to its depth, so that what it teaches the early
    blocks is a part of what others teach them. `Local(between=Distil())` lets the heads learn from each other as well.

    Args:
        rounds: T, the number of rounds.
        stages: The number of stages of the model.

    >>> every_head(5, stages=3)[0].used_heads
    (1, 2, 3)
    """
    return tuple(replace(phase, heads=tuple(range(1, stages + 1))) for phase in end_to_end(rounds, stages=stages))


def in_turns(schedule: Schedule) -> Schedule:
    """The same schedule, in which weak clients train all blocks of a phase, in groups one after the other.

    A client whose `deepest` is d trains d blocks at once, with the head that stands on the last of them, while the
    blocks before stand still; then the next d, until it has trained all that the phase trains. Other clients train as
    before.

    Args:
        schedule: What `every_head`, `progressive`, `end_to_end` or another function returns.

    >>> [turn.trains for turn in within(in_turns(end_to_end(5, stages=3))[0], 1).turns]
    [(1,), (2,), (3,)]
    """
    return tuple(replace(phase, at_once=phase.stage) for phase in schedule)


def layerwise(rounds: int, *, stages: int) -> Schedule:
    """Only block E_s learns in stage s, while the input passes through the whole model (Sec. 4.5)."""
    return tuple(Phase(stages, length, trains=(s,)) for s, length in enumerate(stage_lengths(rounds, stages), start=1))


def partial(rounds: int, *, stages: int) -> Schedule:
    """E_1..E_s learn in stage s, but the loss comes from the last head G_S (Sec. 4.5)."""
    return tuple(
        Phase(stages, length, trains=tuple(range(1, s + 1)))
        for s, length in enumerate(stage_lengths(rounds, stages), start=1)
    )


def mixed(rounds: int, *, stages: int) -> Schedule:
    """E_1..E_s learn from the losses of both G_s and G_S: `partial` and `progressive` together (Sec. 4.5)."""
    return tuple(
        replace(phase, heads=(s, stages) if s < stages else ())
        for s, phase in enumerate(partial(rounds, stages=stages), start=1)
    )


class Drawn(tuple[Phase, ...]):
    """The schedule that `random` makes: its phases, and what they were drawn from, so that they can be drawn again.

    A recipe draws it anew from its own seed, unless `random` was given a seed (`fixed`).
    """

    rounds: int
    stages: int
    seed: int
    fixed: bool
    warmup: int = 0

    def again(self, *, rounds: int | None = None, seed: int | None = None, warmup: int | None = None) -> Drawn:
        """The same strategy with another number of rounds, another seed, or another number of warm-up rounds."""
        return _drawn(
            self.rounds if rounds is None else rounds,
            self.stages,
            self.seed if seed is None else seed,
            self.fixed,
            self.warmup if warmup is None else warmup,
        )


def random(rounds: int, *, stages: int, seed: int | None = None) -> Schedule:
    """Each round of the first half trains a sub-model drawn at random, the others the full model (Sec. 4.5).

    Args:
        rounds: T, the number of rounds.
        stages: The number of stages of the model.
        seed: What the sub-models are drawn from; None: the seed of the recipe that takes the schedule, and so `--seed`.
    """
    return _drawn(rounds, stages, seed or 0, seed is not None, 0)


def _drawn(rounds: int, stages: int, seed: int, fixed: bool, warmup: int) -> Drawn:
    *early, last = stage_lengths(rounds, stages)
    draws = rng.numpy_generator(seed, "schedule").integers(1, stages + 1, size=sum(early))
    phases = (*(Phase(int(stage), 1) for stage in draws), Phase(stages, last))
    made = Drawn(_warmed(phases, warmup))
    made.rounds, made.stages, made.seed, made.fixed, made.warmup = rounds, stages, seed, fixed, warmup
    return made


def follow(schedule: Schedule, seed: int) -> Schedule:
    """The schedule as a recipe with this seed uses it: one made by `random` is drawn again, any other is unchanged.

    >>> follow(random(60, stages=3), 7) == random(60, stages=3, seed=7)
    True
    """
    if isinstance(schedule, Drawn) and not schedule.fixed and schedule.seed != seed:
        return schedule.again(seed=seed)
    return schedule


def within(phase: Phase, deepest: int) -> Phase:
    """The same phase for a client that can train M^deepest at most.

    It trains that sub-model: of the phase's blocks those that it holds, and of its heads those up to its own, if its
    own is among them; otherwise its own head alone. Where it holds none of the blocks, as in the warm-up of a deeper
    one, it trains the last block that it holds. A phase with a limit `at_once` it trains as it is, in smaller groups.

    >>> within(Phase(3, 5), 2).stage, within(Phase(3, 5, trains=(3,), warmup=True), 2).trains
    (2, (2,))
    >>> within(Phase(3, 5, heads=(1, 2, 3)), 2).used_heads, within(Phase(3, 5, at_once=3), 2).at_once
    ((1, 2), 2)
    """
    if phase.stage <= deepest:
        return phase
    if phase.at_once:
        return replace(phase, at_once=min(phase.at_once, deepest))
    trains = tuple(block for block in phase.trains if block <= deepest) or (phase.trains and (deepest,))
    heads = tuple(head for head in phase.heads if head <= deepest) if deepest in phase.heads else ()
    return replace(phase, stage=deepest, trains=trains, heads=heads if len(heads) > 1 else ())


def length(schedule: Schedule) -> int:
    """T: the number of rounds of a schedule, without warm-up."""
    return sum(phase.rounds for phase in schedule if not phase.warmup)


def rescale(schedule: Schedule, rounds: int) -> Schedule:
    """The same strategy over another number of rounds: phases and warm-up keep their proportions.

    Every phase keeps at least one round, and the sum without warm-up is exactly `rounds`. An `overlap` lasts as long as
    before, or the whole stage where that is shorter. A schedule made by `random` is drawn again.
    """
    total = length(schedule)
    if isinstance(schedule, Drawn):
        return schedule.again(rounds=rounds, warmup=_shorter(schedule.warmup, rounds, total) if schedule.warmup else 0)
    schedule, overlaps = _without_overlap(schedule)
    left = sum(not phase.warmup for phase in schedule)
    if rounds < left:
        kind = "stages" if left == len({phase.stage for phase in schedule}) else "phases"
        raise UsageError(f"{rounds} rounds are too few for {left} {kind}: give at least one round to each")
    scaled: list[Phase] = []
    done = end = 0
    for phase in schedule:
        if phase.warmup:
            scaled.append(replace(phase, rounds=_shorter(phase.rounds, rounds, total)))
            continue
        done += phase.rounds
        left -= 1
        border = min(max(done * rounds // total, end + 1), rounds - left)
        scaled.append(replace(phase, rounds=border - end))
        end = border
    return tuple(part for phase, overlap in zip(scaled, overlaps, strict=True) for part in _overlapped(phase, overlap))


def _shorter(warmup: int, rounds: int, total: int) -> int:
    """The number of warm-up rounds when `total` rounds become `rounds`: in proportion, and at least one."""
    return max(1, warmup * rounds // total)


def with_warmup(schedule: Schedule, rounds: int) -> Schedule:
    """The same schedule with this many warm-up rounds before each stage after the first; 0 takes them out.

    Blocks that were trained before are not warmed up: where a schedule goes back and forth between stages, only a
    stage deeper than all before it has new blocks.
    """
    if rounds < 0:
        raise UsageError(f"warm-up rounds cannot be negative: {rounds}")
    return schedule.again(warmup=rounds) if isinstance(schedule, Drawn) else _warmed(schedule, rounds)


def _warmed(schedule: Schedule, rounds: int) -> Schedule:
    phases: list[Phase] = []
    deepest, trained = 0, set[int]()
    for phase in (phase for phase in schedule if not phase.warmup):
        new = tuple(block for block in phase.trained_blocks if block not in trained)
        if rounds and 0 < deepest < phase.stage and new:
            phases.append(Phase(phase.stage, rounds, trains=new, warmup=True))
        phases.append(phase)
        deepest = max(deepest, phase.stage)
        trained.update(new)
    return tuple(phases)
