"""The loop of Algorithm 1, as a generator of rounds.

Evaluating, logging, checkpointing and progress bars are consumers of this generator, not callbacks inside it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from progfed import server
from progfed.blocks import Progressive
from progfed.codec import Float
from progfed.downlink import broadcast, exchange
from progfed.errors import UsageError
from progfed.flops import PhaseCost, buffer_names, phase_cost
from progfed.inbox import Inbox
from progfed.privacy import accounting
from progfed.protocol import DOWN, UP, Cost, Engine, Envelope, Task
from progfed.rate import Moment
from progfed.recipe import Recipe
from progfed.schedule import Phase, Schedule, length
from progfed.tensors import Tensors, add, of_parts


@dataclass(frozen=True)
class Progress:
    """Everything that a run needs to go on after a round: the tensors, the server's state, and the costs so far.

    `held` is the model that clients hold, where they are sent changes of it; it lags by what the codec has lost.
    """

    round: int = 0
    params: Tensors = field(default_factory=dict)
    state: server.State = field(default_factory=dict)
    held: Tensors = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True)
class Round:
    """What happened in a round; `progress` is where the run stands after it, and holds M^stage as trained so far.

    `surplus` reserves answered and were not needed; `epsilon` is the privacy spent so far, where any is promised.
    """

    number: int
    phase: Phase
    lr: float
    loss: float
    clients: int
    rejected: dict[str, int]
    cost: Cost
    progress: Progress
    surplus: int = 0
    epsilon: float | None = None


@dataclass(frozen=True)
class Turn:
    """A round to come: its number, its phase, whether it opens the phase, and how many rounds of it went before."""

    number: int
    phase: Phase
    index: int
    offset: int
    moment: Moment


def turns(schedule: Schedule) -> Iterator[Turn]:
    """The rounds of a schedule, numbered from 1 with warm-up included."""
    number, done, total = 0, 0, length(schedule)
    for index, phase in enumerate(schedule):
        for offset in range(phase.rounds):
            number += 1
            moment = Moment(done, total, offset, phase.rounds, phase.warmup, phase.stage)
            yield Turn(number, phase, index, offset, moment)
            done += not phase.warmup


def federate(
    model: Progressive,
    sizes: Sequence[int],
    recipe: Recipe,
    engine: Engine,
    *,
    run: str = "0" * 16,
    start: Progress | None = None,
) -> Iterator[Round]:
    """Train `model` on clients that hold `sizes[i]` examples each, continuing after `start` where it is given."""
    check(model, recipe)
    if not 1 <= recipe.cohort <= len(sizes):
        raise UsageError(
            f"a cohort of {recipe.cohort} clients cannot be drawn from {len(sizes)}: use 1 to {len(sizes)}"
        )
    progress = start or Progress()
    costs: dict[Phase, PhaseCost] = {}
    for turn in turns(recipe.schedule):
        if turn.number <= progress.round:
            continue
        began, phase = time.perf_counter(), turn.phase
        if turn.offset == 0:
            progress = grow(progress, model, recipe, turn.index)
        if phase not in costs:
            costs = {phase: phase_cost(model, phase)}

        # send x_t^s to a fresh cohort; the message is made once, whoever it goes to
        lr = recipe.rate(turn.moment)
        cohort = recipe.draw(len(sizes), turn.number)
        downlink = broadcast(
            progress.params, progress.held, model, recipe, Envelope(DOWN, run, turn.number, phase.stage), phase
        )
        tasks = [Task(client, turn.number, phase, lr, downlink.message) for client in cohort]

        # x_{t+1} = x_t + server(mean of the clients' changes), or another way to make one of many
        inbox = Inbox(cohort, sizes, costs[phase].up, recipe, Envelope(UP, run, turn.number, phase.stage))
        delta = recipe.combine(inbox.open(exchange(engine, tasks, downlink)), turn.number)
        inbox.check(turn.number)
        params, state = apply(progress, delta, recipe, costs[phase].buffers)

        cost = Cost(
            down_bytes=len(downlink.message) * len(cohort) + downlink.extra_down,
            up_bytes=inbox.up_bytes + downlink.extra_up,
            paper_bytes=paper_bytes(phase, turn.offset, costs[phase], recipe) * recipe.cohort,
            flops=costs[phase].flops * inbox.trained * recipe.local.epochs,
            seconds=time.perf_counter() - began,
        )
        progress = Progress(turn.number, params, state, downlink.held, progress.cost + cost)
        spent = recipe.spent(turn.number, len(sizes))
        yield Round(
            turn.number, phase, lr, inbox.loss, inbox.valid, dict(inbox.rejected), cost, progress, inbox.surplus, spent
        )


def check(model: Progressive, recipe: Recipe) -> None:
    """Refuse what cannot work before anything is trained."""
    model.check(recipe.schedule)
    if recipe.privacy:
        accounting()
    lossy = [codec.name for codec in (recipe.up, recipe.down) if codec.name != Float().name]
    deepest = max(recipe.schedule, key=lambda phase: phase.stage)
    buffers = buffer_names(model, deepest) if lossy or recipe.privacy else frozenset()
    if buffers and recipe.privacy:
        raise UsageError(
            f"{model.name} has running statistics ({min(buffers)}, …), whose scale no clipping norm fits: "
            "train with privacy on a model with group normalisation"
        )
    if buffers:
        raise UsageError(
            f"{model.name} has running statistics ({min(buffers)}, …) that {lossy[0]} would distort: "
            "use a model with group normalisation, or send floats"
        )


def grow(progress: Progress, model: Progressive, recipe: Recipe, index: int) -> Progress:
    """Enter phase `index`: make the parts it needs and lacks, and discard those that no later phase uses."""
    needed = {part for phase in recipe.schedule[index:] for part in model.parts(phase)}
    params = of_parts(progress.params, needed)
    present = {name.split(".", 1)[0] for name in params}
    new = [part for part in model.parts(recipe.schedule[index]) if part not in present]
    for part in new:
        params |= model.init(part, seed=recipe.seed)
    state = progress.state
    if new or params.keys() != progress.params.keys():
        state = server.grow(recipe.server, state, params)
    return replace(progress, params=params, state=state)


def apply(progress: Progress, delta: Tensors, recipe: Recipe, buffers: frozenset[str]) -> tuple[Tensors, server.State]:
    """Let the server optimizer take its step; buffers such as BatchNorm statistics are averaged as they are."""
    learned = {name: value for name, value in delta.items() if name not in buffers}
    step, state = recipe.server.update(learned, progress.state)
    averaged = {name: value for name, value in delta.items() if name in buffers}
    return add(progress.params, {**step, **averaged}), state


def paper_bytes(phase: Phase, offset: int, cost: PhaseCost, recipe: Recipe) -> int:
    """One client's round in the published accounting: 4 bytes a parameter times the codec's nominal rate, uplink only.

    In the k-th warm-up round the published code bills k copies of the new layers; so does this column.
    """
    copies = offset + 1 if phase.warmup else 1
    return round(4 * recipe.up.rate * copies * cost.trained_parameters)
