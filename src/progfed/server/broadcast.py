"""How the server sends the model: encoded once a round, whole, or as the change of the model that clients hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from progfed import rng
from progfed.blocks import Progressive, hold
from progfed.codec import Float, schema_of
from progfed.errors import MessageError, TrainingError
from progfed.recipe.recipe import Recipe
from progfed.schedule import Phase
from progfed.tensors import Tensors, add, of_parts, sub
from progfed.wire.message import CHANGE, Envelope, model_digest, seal, seal_body


@dataclass(frozen=True)
class Broadcast:
    """What the server sends in a round, and the model that clients hold after it, where they are sent changes.

    There is one message for each sub-model that clients of the round train: one, where nobody is too weak for it.
    `whole` makes the message for a client that asks because it does not hold what a change starts from.
    """

    messages: dict[Phase, bytes]
    held: Tensors
    envelope: Envelope
    whole: Callable[[], bytes] = bytes  # no bytes: nobody asks where whole models are sent


def broadcast(
    params: Tensors, held: Tensors, model: Progressive, recipe: Recipe, envelope: Envelope, phases: Iterable[Phase]
) -> Broadcast:
    """Encode x_t^s once: whole, or as the change of the model that clients hold.

    What a codec loses of a change stays in the difference to the next one: error feedback, without a memory of its own.
    A whole model needs none, since nothing is left of one message when the next is decoded.
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
) -> Broadcast:
    key = rng.number(recipe.seed, "down", envelope.round)

    def whole(phase: Phase) -> bytes:
        tensors, opening = of_parts(params, model.parts(phase)), replace(envelope, stage=phase.stage)
        if recipe.base == "start":
            start = hold({}, model, phase, seed=recipe.seed)
            tensors, opening = sub(tensors, start), replace(opening, base=model_digest(start))
        return seal(opening, tensors, recipe.down, key)

    if not recipe.delta:
        messages = {phase: whole(phase) for phase in phases}
        return Broadcast(messages, {}, envelope)
    (phase,) = phases  # `server.checks` has refused weak devices here
    held = hold(held, model, phase, seed=recipe.seed)
    change = sub(of_parts(params, model.parts(phase)), held)
    body = recipe.down.encode(change, key)
    arrived = recipe.down.decode(memoryview(body), schema_of(change))
    opening = replace(envelope, kind=CHANGE, base=model_digest(held))
    message = seal_body(opening, schema_of(change), recipe.down, body)
    after = add(held, arrived)
    if recipe.base == "start":
        return Broadcast({phase: message}, after, envelope, lambda: whole(phase))
    # without loss, so that all hold the same
    return Broadcast({phase: message}, after, envelope, lambda: seal(envelope, after, Float(), 0))
