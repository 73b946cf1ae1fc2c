"""How the server sends the model: encoded once a round, whole, or as the change of the model that clients hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from progfed import rng
from progfed.blocks import Progressive, hold
from progfed.codec import Float, schema_of
from progfed.errors import MessageError
from progfed.protocol import ASK, CHANGE, Engine, Envelope, Task, Update, kind_of, model_digest, seal, seal_body, unseal
from progfed.recipe import Recipe
from progfed.schedule import Phase
from progfed.tensors import Tensors, add, of_parts, sub


@dataclass
class Downlink:
    """What the server sends in a round, what clients hold after it, and what answering those who ask has cost."""

    message: bytes
    held: Tensors
    envelope: Envelope
    extra_down: int = 0
    extra_up: int = 0

    def whole(self) -> bytes:
        """The whole model for a client that asks: without loss, so that all hold the same."""
        return seal(self.envelope, self.held, Float(), 0)


def broadcast(
    params: Tensors, held: Tensors, model: Progressive, recipe: Recipe, envelope: Envelope, phase: Phase
) -> Downlink:
    """Encode x_t^s once: whole, or as the change of the model that clients hold.

    What a codec loses of a change stays in the difference to the next one: error feedback, without a memory of its own.
    """
    sent = of_parts(params, model.parts(phase))
    key = rng.number(recipe.seed, "down", envelope.round)
    if not recipe.delta:
        return Downlink(seal(envelope, sent, recipe.down, key), {}, envelope)
    held = hold(held, model, phase, seed=recipe.seed)
    change = sub(sent, held)
    body = recipe.down.encode(change, key)
    arrived = recipe.down.decode(memoryview(body), schema_of(change))
    opening = replace(envelope, kind=CHANGE, base=model_digest(held))
    message = seal_body(opening, schema_of(change), recipe.down, body)
    return Downlink(message, add(held, arrived), envelope)


def exchange(engine: Engine, tasks: Sequence[Task], downlink: Downlink) -> Iterator[Update]:
    """Hand out the tasks and pass on the updates; clients that ask for the whole model get it and try again."""
    asking: set[int] = set()
    for update in engine(tasks):
        if downlink.held and _asks(update, downlink.envelope):
            asking.add(update.client)
            downlink.extra_up += len(update.message)
        else:
            yield update
    if asking:
        whole = downlink.whole()
        again = [replace(task, message=whole) for task in tasks if task.client in asking]
        downlink.extra_down += len(whole) * len(again)
        yield from engine(again)


def _asks(update: Update, envelope: Envelope) -> bool:
    """Whether an update is a valid request for the whole model; anything else is the inbox's to judge."""
    if kind_of(update.message) != ASK:
        return False
    try:
        unseal(update.message, replace(envelope, kind=ASK, client=update.client), {}, Float())
    except MessageError:
        return False
    return True
