"""How the server sends the model: encoded once a round, whole, or as the change of the model that clients hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from progfed import rng
from progfed.blocks import Progressive, hold
from progfed.codec import Float, schema_of
from progfed.errors import MessageError, TrainingError
from progfed.recipe.recipe import Recipe
from progfed.schedule import Phase
from progfed.tensors import Tensors, add, of_parts, sub
from progfed.wire.engine import Engine, Task, Update
from progfed.wire.message import ASK, CHANGE, Envelope, kind_of, model_digest, seal, seal_body, unseal


@dataclass
class Downlink:
    """What the server sends in a round, what clients hold after it, and what answering those who ask has cost.

    There is one message for each sub-model that clients of the round train: one, where nobody is too weak for it.
    """

    messages: dict[Phase, bytes]
    held: Tensors
    envelope: Envelope
    extra_down: int = 0
    extra_up: int = 0

    def whole(self) -> bytes:
        """The whole model for a client that asks: without loss, so that all hold the same."""
        return seal(self.envelope, self.held, Float(), 0)


def broadcast(
    params: Tensors, held: Tensors, model: Progressive, recipe: Recipe, envelope: Envelope, phases: Iterable[Phase]
) -> Downlink:
    """Encode x_t^s once: whole, or as the change of the model that clients hold.

    What a codec loses of a change stays in the difference to the next one: error feedback, without a memory of its own.
    """
    try:
        return _encoded(params, held, model, recipe, envelope, phases)
    except MessageError as error:
        raise TrainingError(
            f"round {envelope.round}: the model cannot be sent with codec {recipe.down.name} ({error}): "
            "lower the learning rate, or use another codec"
        ) from error


def _encoded(
    params: Tensors, held: Tensors, model: Progressive, recipe: Recipe, envelope: Envelope, phases: Iterable[Phase]
) -> Downlink:
    sent = {phase: of_parts(params, model.parts(phase)) for phase in phases}
    key = rng.number(recipe.seed, "down", envelope.round)
    if not recipe.delta:
        messages = {
            phase: seal(replace(envelope, stage=phase.stage), tensors, recipe.down, key)
            for phase, tensors in sent.items()
        }
        return Downlink(messages, {}, envelope)
    ((phase, whole),) = sent.items()  # `federate.check` has refused weak devices here
    held = hold(held, model, phase, seed=recipe.seed)
    change = sub(whole, held)
    body = recipe.down.encode(change, key)
    arrived = recipe.down.decode(memoryview(body), schema_of(change))
    opening = replace(envelope, kind=CHANGE, base=model_digest(held))
    message = seal_body(opening, schema_of(change), recipe.down, body)
    return Downlink({phase: message}, add(held, arrived), envelope)


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
