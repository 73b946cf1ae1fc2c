"""The loop of Algorithm 1, as a generator of rounds.

Evaluating, logging, checkpointing and progress bars are consumers of this generator, not callbacks inside it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from progfed.blocks import Progressive
from progfed.costs import Costs
from progfed.errors import UsageError
from progfed.population import check_deepest
from progfed.recipe.buffers import with_exact_buffers
from progfed.recipe.recipe import Recipe
from progfed.recipe.turns import next_turn
from progfed.server.broadcast import broadcast
from progfed.server.budget import affordable
from progfed.server.checks import check, check_model
from progfed.server.replies import collect
from progfed.server.rounds import Progress as Progress
from progfed.server.rounds import Round as Round
from progfed.server.rounds import ask, conclude
from progfed.server.rounds import grow as grow
from progfed.server.step import crossing, shares, step
from progfed.wire.engine import Engine, Task
from progfed.wire.message import DOWN, Envelope


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
    if recipe.asynchronous:
        raise UsageError("federate() is the synchronous loop: give an asynchronous recipe to run(), or to buffered()")
    recipe = with_exact_buffers(recipe, model)
    progress, costs = start or Progress(), Costs(model, recipe.method)
    while turn := next_turn(recipe, progress.round, progress.watch):
        began, lr = time.perf_counter(), recipe.rate(turn.moment)
        if turn.offset == 0:
            progress = grow(progress, model, recipe, turn.index, deepest)

        # send x_t^s to a fresh cohort, or the largest sub-model that a client can train; each is encoded once
        asked = ask(turn.phase, recipe.draw(len(sizes), turn.number), deepest, costs)
        envelope = Envelope(DOWN, run_id, turn.number, turn.phase.stage)
        now = affordable(recipe, turn, progress.watch, progress.cost, costs, clients=len(sizes))
        sent = broadcast(crossing(progress.params, progress.state), progress.held, model, now, envelope, asked.down)
        tasks = [
            Task(client, turn.number, phase, lr, sent.messages[phase], now.bits)
            for client, phase in asked.phases.items()
        ]

        # x_{t+1} = x_t + server(mean of the clients' changes), or another way to make one of many
        with collect(engine, tasks, sent, recipe=now, sizes=sizes, schemas=asked.up) as replies:
            mean = recipe.combine(replies, turn.number)
        by = shares(replies.summary.updates, asked.up, len(sizes))
        params, state = step(progress.params, progress.state, mean, recipe, buffers=asked.buffers, shares=by)
        check_model(params, state, turn.number)

        done = conclude(
            progress,
            turn,
            replies.summary,
            params=params,
            state=state,
            recipe=recipe,
            costs=costs,
            asked=asked,
            clients=len(sizes),
            lr=lr,
            down_bytes=sum(len(task.message) for task in tasks),
            began=began,
            held=sent.held,
        )
        progress = done.progress
        yield done
