"""A few trials that a user can run on any machine: a run that is killed, messages that are damaged, two workers.

The full set, with large counts and many more ways to break a run, is in the repository's folder `reliability/`.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import torch
from torch import nn

from progfed import rng
from progfed.blocks import Progressive
from progfed.codec import codec
from progfed.errors import MessageError, ProgfedError
from progfed.population import from_clients
from progfed.recipe.recipe import Recipe
from progfed.runs.experiment import Experiment
from progfed.runs.train import run
from progfed.schedule import progressive
from progfed.wire.message import UP, Envelope, seal, unseal

CODECS = ("float", "LQ-8", "LQ-2", "SP-25", "LQ-8+SP-25", "ROT+LQ-4")


class TrialFailed(ProgfedError):
    """A promise was broken; the message says which, and what repeats it."""


@dataclass(frozen=True)
class Outcome:
    """What came of a trial: what was done, how often, in how many seconds, and what broke (empty: nothing)."""

    trial: str
    count: int
    seconds: float
    failure: str = ""


def selftest(*, kills: int, messages: int, seed: int) -> Iterator[Outcome]:
    """Run the trials one after the other.

    Args:
        kills: how often a small run is killed before it may finish.
        messages: how many damaged messages are opened.
        seed: decides the moments and the damage; another seed tries other ones.
    """
    trials: dict[str, tuple[int, Callable[[int, int, Path], None]]] = {
        "a run that is killed ends with the same bits": (kills, killed),
        "a damaged message is refused": (messages, damaged),
        "one worker and two give the same bits": (1, workers),
    }
    for name, (count, trial) in trials.items():
        began, failure = time.monotonic(), ""
        with TemporaryDirectory(prefix="progfed-") as folder:
            try:
                trial(count, seed, Path(folder))
            except TrialFailed as error:
                failure = str(error)
        yield Outcome(name, count, time.monotonic() - began, failure)


def killed(count: int, seed: int, folder: Path) -> None:
    """Kill a run `count` times at random moments, let it finish, and compare it with one that was left alone."""
    whole = _digest(_finished(folder / "whole"))
    draw = Random(rng.number(seed, "selftest", "kills"))
    fork = multiprocessing.get_context("fork")
    for _ in range(count):
        process = fork.Process(target=run, args=(_experiment(), folder / "killed"))
        process.start()
        process.join(timeout=draw.uniform(0.05, 0.5))
        process.kill()
        process.join()
    _expect(_digest(_finished(folder / "killed")) == whole, f"a killed run ended with other bits (seed {seed})")


def damaged(count: int, seed: int, folder: Path) -> None:
    """Change bytes of valid messages, or cut them short: every one must be refused with its reason."""
    draw = Random(rng.number(seed, "selftest", "messages"))
    tensors = {"E1.weight": torch.linspace(-1, 1, 60).view(6, 10), "E1.bias": torch.zeros(6)}
    schema = {name: tuple(value.shape) for name, value in tensors.items()}
    envelope = Envelope(UP, "0" * 16, 1, 1, client=3, examples=10)
    for number in range(count):
        used = codec(CODECS[number % len(CODECS)])
        message = bytearray(seal(envelope, tensors, used, number))
        if draw.random() < 0.2:
            del message[draw.randrange(len(message)) :]
        else:
            message[draw.randrange(len(message))] ^= draw.randrange(1, 256)
        try:
            unseal(bytes(message), envelope, schema, used)
        except MessageError:
            continue
        raise TrialFailed(f"damaged message {number} was accepted ({used.name}, seed {seed})")


def workers(count: int, seed: int, folder: Path) -> None:
    """Train the same run with one worker process and with two."""
    digests = {_digest(_finished(folder / str(number), workers=number)) for number in (1, 2)}
    _expect(len(digests) == 1, "two workers gave other bits than one")


def _experiment() -> Experiment:
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.randn(8, 6, generator=draw), torch.randint(0, 3, (8,), generator=draw)) for _ in range(4)]
    model = Progressive(
        blocks=(lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU()), lambda: nn.Linear(5, 4)),
        heads=(lambda: nn.Linear(5, 3), lambda: nn.Linear(4, 3)),
        example=torch.zeros(1, 6),
        name="selftest",
    )
    data = from_clients(clients, test=clients[0], classes=3)
    recipe = Recipe(schedule=progressive(40, stages=2), cohort=3, up=codec("LQ-8"), feedback=True)
    return Experiment(name="selftest", model=model, data=data, recipe=recipe)


def _finished(folder: Path, *, workers: int = 1) -> Path:
    run(_experiment(), folder, workers=workers)
    return folder


def _digest(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def _expect(held: bool, promise: str) -> None:
    if not held:
        raise TrialFailed(promise)
