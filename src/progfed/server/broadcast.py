"""How the server sends the model: encoded once a round, whole, or as the change of the model that clients hold."""

from __future__ import annotations

from collections.abc import Iterable
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
    """

    messages: dict[Phase, bytes]
    held: Tensors
    envelope: Envelope

    def whole(self) -> bytes:
        """The whole model for a client that asks: without loss, so that all hold the same."""
        return seal(self.envelope, self.held, Float(), 0)


def broadcast(
    params: Tensors, held: Tensors, model: Progressive, recipe: Recipe, envelope: Envelope, phases: Iterable[Phase]
) -> Broadcast:
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
) -> Broadcast:
    sent = {phase: of_parts(params, model.parts(phase)) for phase in phases}
    key = rng.number(recipe.seed, "down", envelope.round)
    if not recipe.delta:
        messages = {
            phase: seal(replace(envelope, stage=phase.stage), tensors, recipe.down, key)
            for phase, tensors in sent.items()
        }
        return Broadcast(messages, {}, envelope)
    ((phase, whole),) = sent.items()  # `server.checks` has refused weak devices here
    held = hold(held, model, phase, seed=recipe.seed)
    change = sub(whole, held)
    body = recipe.down.encode(change, key)
    arrived = recipe.down.decode(memoryview(body), schema_of(change))
    opening = replace(envelope, kind=CHANGE, base=model_digest(held))
    message = seal_body(opening, schema_of(change), recipe.down, body)
    return Broadcast({phase: message}, add(held, arrived), envelope)
