"""How the server sends the model: encoded once a round, whole, or as the change of the model that clients hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from progfed import rng
from progfed.blocks import Progressive, hold
from progfed.codec import Float, Schema
from progfed.errors import MessageError, TrainingError, UsageError
from progfed.recipe.recipe import Recipe
from progfed.schedule import Phase
from progfed.tensors import Tensors, add
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
    tensors: Tensors,
    held: Tensors,
    model: Progressive,
    recipe: Recipe,
    envelope: Envelope,
    schemas: Mapping[Phase, Schema],
) -> Broadcast:
    """Encode x_t^s once: whole, or as the change of the model that clients hold.

    What a codec loses of a change stays in the difference to the next one: error feedback, without a memory of its own.
    A whole model needs none, since nothing is left of one message when the next is decoded. `tensors` are the model and
    what travels beside it, which is always sent as it is; `schemas` say which of them a message has.
    """
    try:
        return _encoded(tensors, held, model, recipe, envelope, schemas)
    except MessageError as error:
        raise TrainingError(
            f"round {envelope.round}: the model cannot be sent with codec {recipe.downward.name} ({error}): "
            "lower the learning rate, or use another codec"
        ) from error


def _encoded(
    tensors: Tensors,
    held: Tensors,
    model: Progressive,
    recipe: Recipe,
    envelope: Envelope,
    schemas: Mapping[Phase, Schema],
) -> Broadcast:
    key, codec = rng.number(recipe.seed, "down", envelope.round), recipe.downward

    def whole(phase: Phase) -> bytes:
        sent, opening = _crossing(tensors, schemas[phase], recipe), replace(envelope, stage=phase.stage)
        if recipe.base == "start":
            start = _held({}, model, phase, recipe, schemas[phase])
            sent, opening = _since(sent, start), replace(opening, base=model_digest(start))
        return seal(opening, sent, codec, key)

    if not recipe.delta:
        return Broadcast({phase: whole(phase) for phase in schemas}, {}, envelope)
    ((phase, schema),) = schemas.items()  # `server.checks` has refused weak devices here
    held, now = _held(held, model, phase, recipe, schema), _crossing(tensors, schema, recipe)
    change = _since(now, held)
    body = codec.encode(change, key)
    arrived = codec.decode(memoryview(body), schema)
    opening = replace(envelope, kind=CHANGE, base=model_digest(held))
    message = seal_body(opening, schema, codec, body)
    after = add(held, arrived)
    if recipe.base == "start":
        return Broadcast({phase: message}, after, envelope, lambda: whole(phase))
    exact = recipe.with_method(Float())  # without loss, so that all hold the same
    return Broadcast({phase: message}, after, envelope, lambda: seal(envelope, now | after, exact, 0))


def _crossing(tensors: Tensors, schema: Schema, recipe: Recipe) -> Tensors:
    """The tensors of a message; what travels beside the model must be in the state of the method."""
    if missing := [name for name in schema if name not in tensors]:
        raise UsageError(
            f"{type(recipe.method).__name__} sends {missing[0]} beside the model, which is not in its state: let its "
            "`init` or `update` make it"
        )
    return {name: tensors[name] for name in schema}


def _held(held: Tensors, model: Progressive, phase: Phase, recipe: Recipe, schema: Schema) -> Tensors:
    """The model that clients hold when a phase begins, without what is private."""
    return {name: value for name, value in hold(held, model, phase, seed=recipe.seed).items() if name in schema}


def _since(tensors: Tensors, start: Tensors) -> Tensors:
    """What has changed since the start; what travels beside the model, as it is."""
    return {name: value - start[name] if name in start else value for name, value in tensors.items()}
