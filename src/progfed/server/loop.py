"""The loop of Algorithm 1, as a generator of rounds.

Evaluating, logging, checkpointing and progress bars are consumers of this generator, not callbacks inside it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

from progfed.blocks import Progressive
from progfed.costs.phase import Cost, PhaseCost, phase_cost, trained_parameters
from progfed.costs.published import paper_bytes
from progfed.population import check_deepest
from progfed.recipe import optimizers
from progfed.recipe.growth import Watch, stalled
from progfed.recipe.recipe import Recipe
from progfed.recipe.turns import Turn, may_end, realised, turn_at
from progfed.schedule import Phase, within
from progfed.server.broadcast import Downlink, broadcast, exchange
from progfed.server.checks import check, check_model
from progfed.server.replies import Inbox
from progfed.tensors import Tensors, add, of_parts, part, sub
from progfed.wire.engine import Engine, Task
from progfed.wire.message import DOWN, UP, Envelope


@dataclass(frozen=True)
class Progress:
    """Everything that a run needs to go on after a round: the tensors, the server's state, and the costs so far.

    `held` is the model that clients hold, where they are sent changes of it; it lags by what the codec has lost.
    `watch` is what decides when to grow, where the schedule alone does not.
    """

    round: int = 0
    params: Tensors = field(default_factory=dict)
    state: optimizers.State = field(default_factory=dict)
    held: Tensors = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)
    watch: Watch = field(default_factory=Watch)


@dataclass(frozen=True)
class Round:
    """What happened in a round; `progress` is where the run stands after it, and holds M^stage as trained so far.

    `surplus` reserves answered and were not needed; `epsilon` is the privacy spent so far, where any is promised.
    `closes` tells the last round of a phase, `freed` how many rounds of its budget the phase then left; `signal` is
    what the growth policy looks at.
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
    closes: bool = False
    freed: int = 0
    signal: float | None = None


def federate(
    model: Progressive,
    sizes: Sequence[int],
    recipe: Recipe,
    engine: Engine,
    *,
    run_id: str = "0" * 16,
    start: Progress | None = None,
    deepest: Sequence[int] = (),
) -> Iterator[Round]:
    """Train `model` on clients that hold `sizes[i]` examples each, continuing after `start` where it is given.

    `deepest[i]` is the deepest stage that client i can train, where some are too weak for all of them.
    """
    check_deepest(deepest, len(sizes))
    check(model, recipe, deepest)
    recipe.check_population(len(sizes))
    progress = start or Progress()
    costs: dict[Phase, PhaseCost] = {}
    size = cache(partial(trained_parameters, model))
    while turn := turn_at(realised(recipe.schedule, recipe.growth, progress.watch.lengths), progress.round + 1):
        began, phase = time.perf_counter(), turn.phase
        if turn.offset == 0:
            progress = grow(progress, model, recipe, turn.index, deepest)

        # send x_t^s to a fresh cohort; a message is made once for a sub-model, whoever it goes to
        lr = recipe.rate(turn.moment)
        cohort = recipe.draw(len(sizes), turn.number)
        asked = {client: within(phase, deepest[client]) if deepest else phase for client in cohort}
        costs |= {own: phase_cost(model, own) for own in set(asked.values()) - costs.keys()}
        envelope = Envelope(DOWN, run_id, turn.number, phase.stage)
        downlink = broadcast(progress.params, progress.held, model, recipe, envelope, dict.fromkeys(asked.values()))
        tasks = [Task(client, turn.number, own, lr, downlink.messages[own]) for client, own in by_depth(asked)]

        # x_{t+1} = x_t + server(mean of the clients' changes), or another way to make one of many
        schemas = {own: costs[own].up for own in downlink.messages}
        inbox = Inbox(asked, sizes, schemas, recipe, replace(envelope, kind=UP))
        delta = recipe.combine(inbox.open(exchange(engine, tasks, downlink)), turn.number)
        inbox.check(turn.number)
        buffers = frozenset[str]().union(*(costs[own].buffers for own in downlink.messages))
        params, state = apply(progress, delta, recipe, buffers)
        check_model(params, state, turn.number)

        watch, closes = watched(progress, params, recipe, turn, inbox.loss, buffers)
        depths = [deepest[client] if deepest else model.stages for client in cohort[: recipe.cohort]]
        cost = replace(
            spent(asked, downlink, inbox, costs, recipe),
            paper_bytes=billed(turn, depths, closes, recipe, size),
            seconds=time.perf_counter() - began,
        )
        signal = watch.signal[-1] if watch.signal else None
        if closes and recipe.growth:
            watch = Watch(lengths=(*watch.lengths, turn.offset + 1))
        progress = Progress(turn.number, params, state, downlink.held, progress.cost + cost, watch)
        yield Round(
            turn.number,
            phase,
            lr,
            inbox.loss,
            inbox.valid,
            dict(inbox.rejected),
            cost,
            progress,
            inbox.surplus,
            recipe.spent(turn.number, len(sizes)),
            closes,
            phase.rounds - turn.offset - 1 if closes else 0,
            signal,
        )


def by_depth(asked: Mapping[int, Phase]) -> list[tuple[int, Phase]]:
    """Who trains what, the deepest first: a replica of one sub-model is made once a round, not once a client."""
    return sorted(asked.items(), key=lambda one: -one[1].stage)


def grow(progress: Progress, model: Progressive, recipe: Recipe, index: int, deepest: Sequence[int] = ()) -> Progress:
    """Enter phase `index`: make the parts it needs and lacks, and discard those that no later phase uses.

    The head of a weak client's sub-model is used in every phase that is too deep for it, so it stays.
    """
    depths = sorted({*deepest, model.stages}, reverse=True)
    parts = [
        [name for depth in depths for name in model.parts(within(phase, depth))] for phase in recipe.schedule[index:]
    ]
    params = of_parts(progress.params, {name for used in parts for name in used})
    present = {part(name) for name in params}
    new = [name for name in dict.fromkeys(parts[0]) if name not in present]
    for name in new:
        params |= model.init(name, seed=recipe.seed)
    state = progress.state
    warmed = recipe.server.reset and index > 0 and recipe.schedule[index - 1].warmup
    if new or params.keys() != progress.params.keys() or warmed:
        state = optimizers.grow(recipe.server, state, params)
    return replace(progress, params=params, state=state)


def apply(
    progress: Progress, delta: Tensors, recipe: Recipe, buffers: frozenset[str]
) -> tuple[Tensors, optimizers.State]:
    """Let the server optimizer take its step; buffers such as BatchNorm statistics are averaged as they are."""
    learned = {name: value for name, value in delta.items() if name not in buffers}
    step, state = recipe.server.update(learned, progress.state)
    averaged = {name: value for name, value in delta.items() if name in buffers}
    return add(progress.params, {**step, **averaged}), state


def watched(
    progress: Progress, params: Tensors, recipe: Recipe, turn: Turn, loss: float, buffers: frozenset[str]
) -> tuple[Watch, bool]:
    """What the growth policy has seen after a round, and whether the round is the last of its phase."""
    watch, closes = progress.watch, turn.offset + 1 == turn.phase.rounds
    if recipe.growth is None or not may_end(turn.phase, turn.index, recipe.schedule):
        return watch, closes
    newest = of_parts(params, [f"E{max(turn.phase.trained_blocks)}"])
    step = sub({name: value for name, value in newest.items() if name not in buffers}, progress.params)
    watch = recipe.growth.see(watch, loss, step)
    return watch, closes or (turn.offset + 1 >= recipe.growth.least and stalled(recipe.growth, watch))


def spent(
    asked: Mapping[int, Phase], downlink: Downlink, inbox: Inbox, costs: Mapping[Phase, PhaseCost], recipe: Recipe
) -> Cost:
    """What a round has cost, the time and the published accounting aside."""
    return Cost(
        down_bytes=sum(len(downlink.messages[own]) for own in asked.values()) + downlink.extra_down,
        up_bytes=inbox.up_bytes + downlink.extra_up,
        flops=sum(costs[own].flops * examples for own, examples in inbox.trained.items()) * recipe.local.epochs,
    )


def billed(turn: Turn, depths: Sequence[int], closes: bool, recipe: Recipe, size: Callable[[Phase], int]) -> int:
    """The round in the published accounting, summed over clients of these depths; `size` counts trained parameters."""

    def bill(depth: int) -> int:
        return paper_bytes(
            recipe.schedule,
            turn.index,
            turn.offset,
            closes=closes,
            trained=lambda phase: size(within(phase, depth)),
            rate=recipe.up.rate,
        )

    return sum(number * bill(depth) for depth, number in Counter(depths).items())
