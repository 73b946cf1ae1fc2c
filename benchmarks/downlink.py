"""Two ideas for the way down that are not built, measured on a small MLP and the embedded images, on held-out data.

`returning`: how long the change since the model that a client got when it last took part would be, relative to the
change since the start, with the same step. `feedback`: whether it helps that the server adds what one whole model lost
to the next one.

    python benchmarks/downlink.py returning
    python benchmarks/downlink.py feedback
"""

from __future__ import annotations

import statistics
import struct
import sys
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from progfed import Local, LocalEngine, Progressive, Recipe, end_to_end, federate, rng
from progfed.blocks import hold
from progfed.codec import codec, schema_of
from progfed.codec.dither import written
from progfed.codec.step import flat
from progfed.data.embedded import embedded
from progfed.data.validation import held_out
from progfed.evaluate import accuracy
from progfed.recipe.rate import Cosine
from progfed.server import loop
from progfed.server.broadcast import broadcast
from progfed.tensors import Tensors, add, sub

CLIENTS, COHORT = 50, 5
MODEL = Progressive(
    blocks=(lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU()),),
    heads=(lambda: nn.Linear(64, 10),),
    example=torch.zeros(1, 1, 28, 28),
    name="mlp",
)


@dataclass
class Watched:
    """A broadcast of whole models that keeps what clients then hold, and can feed back what the codec lost."""

    feedback: bool
    lost: Tensors = field(default_factory=dict)
    held: dict[int, tuple[int, Tensors]] = field(default_factory=dict)
    lengths: list[tuple[int, int, float]] = field(default_factory=list)
    """For each client that comes back: the round, how many rounds it was away, and the length relative to a whole."""

    def __call__(self, tensors: Tensors, held: Tensors, model: Progressive, recipe: Recipe, *rest: Any) -> Any:
        envelope, schemas = rest
        (phase,) = schemas
        start = hold({}, model, phase, seed=recipe.seed)
        sent = add(tensors, self.lost) if self.lost else tensors
        body = recipe.down.encode(sub(sent, start), rng.number(recipe.seed, "down", envelope.round))
        arrived = add(start, recipe.down.decode(memoryview(body), schema_of(start)))
        if self.feedback:
            self.lost = sub(sent, arrived)
        _, step, _ = struct.unpack_from("<BfQ", body)
        for client in recipe.draw(CLIENTS, envelope.round):
            if client in self.held and step:
                before, own = self.held[client]
                change = sub(tensors, own)
                message = written([flat(name, change[name]) for name in sorted(change)], step, envelope.round)
                self.lengths.append((envelope.round, envelope.round - before, len(message) / len(body)))
            self.held[client] = envelope.round, arrived
        return broadcast(sent, held, model, recipe, envelope, schemas)


def trained(down: str, *, seed: int, rounds: int, feedback: bool) -> tuple[float, Watched]:
    """The mean accuracy of the last ten rounds, and what was seen of the messages down."""
    recipe = Recipe(
        schedule=end_to_end(rounds, stages=1),
        cohort=COHORT,
        rate=Cosine(0.1),
        local=Local(epochs=3, batch=20, momentum=0.9),
        up=codec("DQ-3"),
        down=codec(down),
        base="start",
        seed=seed,
    )
    data, watched, found = held_out(embedded(clients=CLIENTS)), Watched(feedback), []
    with (
        patch.object(loop, "broadcast", watched),
        LocalEngine(MODEL, data, recipe, test=data.test_examples(), metric=accuracy) as engine,
    ):
        for done in federate(MODEL, data.sizes, recipe, engine):
            if done.number > rounds - 10:
                found.append(engine.evaluate(done.phase, done.progress.params))
    return statistics.fmean(found), watched


def returning() -> None:
    _, watched = trained("DQ-1", seed=100, rounds=100, feedback=False)
    for first in (1, 26, 51, 76):
        own = [(away, length) for number, away, length in watched.lengths if first <= number < first + 25]
        away, length = (statistics.fmean(values) for values in zip(*own, strict=True))
        print(
            f"rounds {first} to {first + 24}: {len(own)} came back after {away:.1f} rounds, {length:.1%} of the length"
        )


def feedback() -> None:
    for on in (False, True):
        found = [trained("DQ-4", seed=seed, rounds=60, feedback=on)[0] for seed in (100, 101, 102)]
        print(f"{'with' if on else 'without'} feedback: {', '.join(f'{one:.2f}' for one in found)} %")


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"returning": returning, "feedback": feedback}[sys.argv[1]]()
