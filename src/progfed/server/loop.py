"""The loop of Algorithm 1, as a generator of rounds.

Evaluating, logging, checkpointing and progress bars are consumers of this generator, not callbacks inside it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from progfed.blocks import Progressive
from progfed.costs import Cost, Costs
from progfed.costs.published import cohort_bytes
from progfed.population import check_deepest
from progfed.recipe import optimizers
from progfed.recipe.buffers import with_exact_buffers
from progfed.recipe.growth import Watch
from progfed.recipe.recipe import Recipe
from progfed.recipe.turns import ending, next_turn
from progfed.schedule import Phase, within
from progfed.server.broadcast import broadcast
from progfed.server.budget import affordable
from progfed.server.checks import check, check_model
from progfed.server.replies import collect
from progfed.server.step import crossing, grown, shares, step
from progfed.tensors import Tensors, of_parts, part
from progfed.wire.engine import Engine, Task
from progfed.wire.message import DOWN, Envelope


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


@dataclass(frozen=True, kw_only=True)
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
    surplus: int
    epsilon: float | None
    closes: bool
    freed: int
    signal: float | None


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
    check(model, recipe, deepest, clients=len(sizes))
    recipe = with_exact_buffers(recipe, model)
    progress, costs = start or Progress(), Costs(model, recipe.method)
    while turn := next_turn(recipe, progress.round, progress.watch):
        began, lr = time.perf_counter(), recipe.rate(turn.moment)
        if turn.offset == 0:
            progress = grow(progress, model, recipe, turn.index, deepest)

        # send x_t^s to a fresh cohort, or the largest sub-model that a client can train; each is encoded once
        cohort = recipe.draw(len(sizes), turn.number)
        depths = {client: deepest[client] if deepest else model.stages for client in cohort}
        phases = {client: within(turn.phase, depth) for client, depth in depths.items()}
        kinds = {phase: costs.phase(phase) for phase in dict.fromkeys(phases.values())}
        down = {phase: kind.down for phase, kind in kinds.items()}
        envelope = Envelope(DOWN, run_id, turn.number, turn.phase.stage)
        now = affordable(recipe, turn, progress.watch, progress.cost, costs, clients=len(sizes))
        sent = broadcast(crossing(progress.params, progress.state), progress.held, model, now, envelope, down)
        tasks = [
            Task(client, turn.number, phase, lr, sent.messages[phase], now.bits) for client, phase in phases.items()
        ]

        up = {phase: kind.up for phase, kind in kinds.items()}
        # x_{t+1} = x_t + server(mean of the clients' changes), or another way to make one of many
        with collect(engine, tasks, sent, recipe=now, sizes=sizes, schemas=up) as replies:
            mean = recipe.combine(replies, turn.number)
        summary, buffers = replies.summary, frozenset[str]().union(*(kind.buffers for kind in kinds.values()))
        by = shares(summary.updates, up, len(sizes))
        params, state = step(progress.params, progress.state, mean, recipe, buffers=buffers, shares=by)
        check_model(params, state, turn.number)

        learned = {name: value for name, value in params.items() if name not in buffers}
        end = ending(turn, recipe, progress.watch, loss=summary.loss, before=progress.params, after=learned)
        used = [depths[client] for client in cohort[: recipe.cohort]]
        cost = Cost(
            down_bytes=sum(len(task.message) for task in tasks) + summary.asked_down,
            up_bytes=summary.up_bytes + summary.asked_up,
            paper_bytes=cohort_bytes(recipe, turn, used, closes=end.closes, costs=costs),
            flops=sum(costs.phase(own).flops * number for own, number in summary.trained.items()),
            seconds=time.perf_counter() - began,
        )
        progress = Progress(
            round=turn.number,
            params=params,
            state=state,
            held=sent.held,
            cost=progress.cost + cost,
            watch=end.watch,
        )
        yield Round(
            number=turn.number,
            phase=turn.phase,
            lr=lr,
            loss=summary.loss,
            clients=summary.clients,
            rejected=summary.rejected,
            surplus=summary.surplus,
            epsilon=recipe.spent(turn.number, len(sizes)),
            closes=end.closes,
            freed=end.freed,
            signal=end.signal,
            cost=cost,
            progress=progress,
        )


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
    for new in [name for name in dict.fromkeys(parts[0]) if name not in present]:
        made = model.init(new, seed=recipe.seed)
        params |= {name: value for name, value in made.items() if not recipe.method.private(name)}
    state = progress.state
    warmed = recipe.server.reset and index > 0 and recipe.schedule[index - 1].warmup
    if params.keys() != progress.params.keys() or warmed:
        state = grown(recipe, state, params)
    return replace(progress, params=params, state=state)
