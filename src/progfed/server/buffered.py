"""Asynchronous rounds on the simulated clock of the clients' devices: the server never waits for the slowest."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from progfed.blocks import Progressive
from progfed.costs import Costs
from progfed.devices import Device
from progfed.errors import UsageError
from progfed.population import check_deepest
from progfed.recipe.buffered import Flight
from progfed.recipe.buffers import with_exact_buffers
from progfed.recipe.recipe import Recipe
from progfed.recipe.turns import next_turn
from progfed.schedule import Phase
from progfed.server.broadcast import Broadcast, broadcast
from progfed.server.checks import check, check_model
from progfed.server.replies import collect
from progfed.server.rounds import Progress, Round, ask, conclude, grow
from progfed.server.step import crossing, shares, step
from progfed.tensors import Tensors
from progfed.wire.engine import Engine, Task
from progfed.wire.message import DOWN, Envelope, message_estimate


def buffered(
    model: Progressive,
    sizes: Sequence[int],
    recipe: Recipe,
    engine: Engine,
    *,
    devices: Sequence[Device],
    run_id: str = "0" * 16,
    start: Progress | None = None,
    deepest: Sequence[int] = (),
) -> Iterator[Round]:
    """Train as `federate` does, except that the server takes a step whenever the recipe's buffer is full.

    Clients are really trained when the clock says that they come back, so it makes no difference where they are. At a
    growth all who are out are called back, and what they have not finished is lost.

    Args:
        model: The model.
        sizes: How many examples each client has.
        recipe: How to train, with `asynchronous`.
        engine: Where clients train.
        devices: The device of each client, which says how long it is out.
        run_id: The 16 digits that every message names.
        start: Where to go on.
        deepest: The deepest stage that each client can train; empty: every client can train every stage.
    """
    buffer = recipe.asynchronous
    check_deepest(deepest, len(sizes))
    check(model, recipe, deepest, clients=len(sizes))
    if buffer is None or len(devices) != len(sizes):
        raise UsageError(
            "asynchronous rounds need Recipe(asynchronous=Buffered(…)), and a device for each client, whose speed says "
            "who comes back first: give the population `devices`"
        )
    recipe = with_exact_buffers(recipe, model)
    progress, costs = start or Progress(), Costs(model, recipe.method)
    post = Post(model, recipe, run_id, costs)
    while turn := next_turn(recipe, progress.round, progress.watch):
        began, lr, aloft = time.perf_counter(), recipe.rate(turn.moment), progress.aloft
        if turn.offset == 0:
            progress, aloft = grow(progress, model, recipe, turn.index, deepest), aloft.called_back()

        # x_t goes to as many clients as have nothing to do; how long each is out depends on its device
        aloft = aloft.with_model(turn.number, crossing(progress.params, progress.state))
        out, sent = list[Flight](), 0
        leaving = ask(turn.phase, recipe.idle(aloft.clients, len(sizes), turn.number), deepest, costs)
        for client, phase in leaving.phases.items():
            kind, down = costs.phase(phase), len(post(turn.number, phase, aloft.models))
            flops = kind.flops * recipe.local.seen(sizes[client])
            seconds = devices[client].seconds(down=down, up=message_estimate(recipe.upward, kind.up), flops=flops)
            out.append(Flight(client, turn.number, aloft.now + seconds))
            sent += down

        # the first to come back fill the buffer, however old the models are that they have trained
        aloft = replace(aloft, flights=(*aloft.flights, *out))
        back = aloft.first(buffer.size)
        asked = ask(turn.phase, [flight.client for flight in back], deepest, costs)
        tasks = [
            Task(flight.client, flight.version, phase, rate_of(recipe, progress, flight.version), message)
            for flight, phase in zip(back, asked.phases.values(), strict=True)
            for message in [post(flight.version, phase, aloft.models)]
        ]
        counts = {flight.client: buffer.weight(turn.number - flight.version) for flight in back}
        nothing = Broadcast({}, {}, Envelope(DOWN, run_id, turn.number, turn.phase.stage))
        with collect(engine, tasks, nothing, recipe=recipe, sizes=sizes, schemas=asked.up, counts=counts) as replies:
            mean = recipe.combine(replies, turn.number)
        by = shares(replies.summary.updates, asked.up, len(sizes))
        params, state = step(progress.params, progress.state, mean, recipe, buffers=asked.buffers, shares=by)
        check_model(params, state, turn.number)

        aloft = aloft.landed(back)
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
            down_bytes=sent,
            began=began,
        )
        post.forget(aloft.models)
        lasted = aloft.now - progress.aloft.now
        progress = replace(done.progress, aloft=aloft)
        yield replace(done, progress=progress, device_seconds=lasted)


def rate_of(recipe: Recipe, progress: Progress, version: int) -> float:
    """The learning rate of the round in which a client left."""
    turn = next_turn(recipe, version - 1, progress.watch)
    assert turn is not None
    return recipe.rate(turn.moment)


class Post:
    """The messages to clients, each of which is encoded once: for a version of the model and a sub-model."""

    def __init__(self, model: Progressive, recipe: Recipe, run_id: str, costs: Costs) -> None:
        self._model, self._recipe, self._run_id, self._costs = model, recipe, run_id, costs
        self._known: dict[tuple[int, Phase], bytes] = {}

    def __call__(self, version: int, phase: Phase, models: Mapping[int, Tensors]) -> bytes:
        """The message of round `version` to clients that train this sub-model."""
        if (version, phase) not in self._known:
            envelope = Envelope(DOWN, self._run_id, version, phase.stage)
            schemas = {phase: self._costs.phase(phase).down}
            sent = broadcast(models[version], {}, self._model, self._recipe, envelope, schemas)
            self._known[version, phase] = sent.messages[phase]
        return self._known[version, phase]

    def forget(self, models: Mapping[int, Tensors]) -> None:
        """Drop the messages of models that nobody trains any more."""
        self._known = {key: message for key, message in self._known.items() if key[0] in models}
