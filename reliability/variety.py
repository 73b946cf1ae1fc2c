"""One small experiment for every kind of part: codecs, optimizers, heads, devices, schedules, data sets from files.

The other trials break the middle of the road in a thousand ways. This one stops and continues a run of each kind, with
another number of workers, and wants the bits of the run that nobody stopped.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from progfed import rng
from progfed.blocks import Progressive
from progfed.codec import codec
from progfed.data import brats, cifar, decathlon, federated_h5, idx, text
from progfed.devices import DeviceMix
from progfed.evaluate import token_accuracy
from progfed.heads import with_heads
from progfed.population import FederatedData
from progfed.recipe import optimizers
from progfed.recipe.ema import Ema
from progfed.recipe.growth import Movement, Plateau
from progfed.recipe.recipe import Local
from progfed.runs.experiment import Experiment
from progfed.runs.train import train
from progfed.schedule import Schedule, freezing, progressive, random
from reliability import data_files, expect
from reliability.cases import MODELS, SERVERS, outcome, plain, population
from reliability.hostile import CODECS

GROWING = progressive(5, stages=3, warmup=1, hold=False)


def one(kind: str, name: str, *, model: str = "dense", data: FederatedData | None = None, **changes: Any) -> Experiment:
    """The plain experiment with other parts."""
    base = plain(**changes).experiment
    made = MODELS[model]
    shape = tuple(made().example.shape[1:])
    return replace(base, name=kind, run=name, model=made, data=data or population(shape))


def codecs() -> Iterator[Experiment]:
    """Every codec: up and down, with what it loses kept by the clients, as changes, and as changes since the start."""
    for name in CODECS:
        yield one("codec", f"{name} both ways", up=codec(name), down=codec(name))
        yield one(
            "codec", f"{name} with feedback and changes", up=codec(name), down=codec(name), feedback=True, delta=True
        )
        yield one("codec", f"{name} since the start", up=codec(name), down=codec(name), base="start")


def trainers() -> Iterator[Experiment]:
    """Every optimizer of the server and of the clients, and every policy of growth."""
    for name, made in SERVERS.items():
        yield one("server", name, server=made())
        yield one("server", f"average of {name}", server=Ema(0.8, made()))
    yield one("server", "fedadam that begins anew", server=optimizers.fedadam(reset=True))
    own: dict[str, Local] = {
        "AdamW": Local(batch=4, optimizer=torch.optim.AdamW),
        "SGD of torch": Local(batch=4, momentum=0.9, optimizer=partial(torch.optim.SGD, nesterov=True), clip=1.0),
        "momentum that is kept": Local(batch=4, momentum=0.9, keep_momentum=True),
        "two steps of two batches": Local(batch=2, epochs=2, steps=2, accumulate=2),
        "FedProx and decay": Local(batch=4, prox=0.1, weight_decay=1e-3, skip_above=50.0),
    }
    for name, local in own.items():
        yield one("client", name, local=local)
    for policy in (
        Plateau(window=1, least=1),
        Movement(window=1, least=1),
        Plateau(window=1, least=1, keep_total=False),
    ):
        yield one("growth", repr(policy), growth=policy)


def heads_and_devices() -> Iterator[Experiment]:
    """Other temporary heads, frozen blocks, two heads at once, devices with clocks, and devices that are too weak."""
    gridded = one("heads", "grid", model="convolutional")
    yield replace(gridded, model=partial(with_heads, gridded.make_model(), "grid"))
    kept = one("heads", "one for all stages")
    yield replace(kept, model=one_head)
    schedules: dict[str, Schedule] = {
        "frozen blocks": freezing(6, stages=3),
        "one block learns again": freezing(6, stages=3, again=1),
        "heads that overlap": progressive(6, stages=3, overlap=1),
        "random": random(6, stages=3),
    }
    for name, schedule in schedules.items():
        yield one("schedule", name, schedule=schedule)
    mix = replace(population((6,)), devices=DeviceMix({"phone": 2, "laptop": 1, "sensor": 1}))
    yield one("devices", "with a clock", data=mix, over_selection=1.3)
    for up in ("float", "EDEN-1", "LQ-4"):
        weak = replace(mix, deepest=(1, 3, 2, 3, 1))
        yield one("devices", f"too weak, {up}", data=weak, up=codec(up), feedback=up != "float", schedule=GROWING)


def one_head() -> Progressive:
    """Three blocks of the same width under the same head."""
    block = partial(nn.Linear, 6, 6)
    return Progressive(
        (block,) * 3, (partial(nn.Linear, 6, 3),) * 3, torch.zeros(1, 6), keep_head=True, name="one head"
    )


class Ends(nn.Module):
    """Keeps no more than the mean over positions, so that one small model fits images of any size."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(2).mean(2)


def _flat(channels: int, classes: int, shape: tuple[int, ...]) -> Progressive:
    blocks = (lambda: nn.Sequential(Ends(), nn.Linear(channels, 5)), partial(nn.Linear, 5, 5))
    return Progressive(blocks, (partial(nn.Linear, 5, classes),) * 2, torch.zeros(1, *shape), name="means")


def _tokens(alphabet: int, context: int) -> Progressive:
    blocks = (partial(nn.Embedding, alphabet, 4), partial(nn.Linear, 4, 4))
    example = torch.zeros(1, context, dtype=torch.long)
    return Progressive(blocks, (partial(nn.Linear, 4, alphabet),) * 2, example, name="tokens")


def _voxels(channels: int, classes: int, size: tuple[int, ...]) -> Progressive:
    blocks = (partial(nn.Conv3d, channels, 3, 1), partial(nn.Conv3d, 3, 3, 1))
    return Progressive(blocks, (partial(nn.Conv3d, 3, classes, 1),) * 2, torch.zeros(1, channels, *size), name="voxels")


def _next(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def data_sets(root: Path) -> Iterator[Experiment]:
    """A run on every kind of file, written in the layout of the real data set."""
    data_files.write_idx(root)
    data_files.write_cifar(root)
    data_files.write_cifar(root, cifar.CIFAR100)
    data_files.write_federated_h5(root / "writers.h5")
    data_files.write_decathlon(root / "decathlon", cases=5)
    data_files.write_brats(root, cases=5)
    size = (8, 8, 8)
    schedule, few = progressive(4, stages=2), {"local": Local(batch=4), "cohort": 2}
    images: dict[str, tuple[FederatedData, tuple[int, ...]]] = {
        "fashion-mnist": (idx.fashion_mnist(root, clients=3, verify=False), (1, 28, 28)),
        "cifar10": (cifar.cifar10(root, clients=3, verify=False), (3, 32, 32)),
        "cifar100": (cifar.cifar100(root, clients=3, verify=False), (3, 32, 32)),
        "federated HDF5": (
            federated_h5.federated_h5(root, train="writers.h5", test="writers.h5", classes=10),
            (1, 28, 28),
        ),
    }
    for name, (data, shape) in images.items():
        made = one("data", name, data=data, schedule=schedule, **few)
        yield replace(made, model=partial(_flat, shape[0], data.classes or 10, shape))
    speakers = text.embedded_speakers(context=16)
    made = one("data", "speakers", data=speakers, schedule=schedule, cohort=2, local=Local(batch=64, loss=_next))
    yield replace(made, model=partial(_tokens, len(text.ALPHABET), 16), metric=token_accuracy)
    volumes: dict[str, tuple[FederatedData, Progressive, Any]] = {
        "decathlon": (
            decathlon.decathlon(root / "decathlon", clients=2, size=size),
            _voxels(1, 3, size),
            functional.cross_entropy,
        ),
        "brats": (
            brats.brats(root, clients=2, size=size),
            _voxels(4, 3, size),
            functional.binary_cross_entropy_with_logits,
        ),
    }
    for name, (data, model, loss) in volumes.items():
        made = one("data", name, data=data, schedule=schedule, cohort=2, local=Local(batch=2, loss=loss))
        yield replace(made, model=partial(replace, model), metric=_hits)


def _hits(outputs: Tensor, targets: Tensor) -> Tensor:
    wanted = targets.argmax(1) if targets.dim() == outputs.dim() else targets
    return (outputs.argmax(1) == wanted).double().flatten(1).mean(1)


def stopped_and_continued(kinds: Iterable[Experiment], count: int, folder: Path, *, seed: int = 0) -> int:
    """Stop a run of each kind `count` times in all, after a round that is drawn, and continue it; how many were."""
    every = list(kinds)
    workers = rng.numpy_generator(seed, "variety")
    for number in range(count):
        made = every[number % len(every)]
        whole, cut = folder / "whole", folder / "cut"
        for _ in train(made, whole, data=folder):
            pass
        last = int(workers.integers(1, sum(phase.rounds for phase in made.recipe.schedule)))
        first, then = (1, 2) if workers.integers(2) else (2, 1)
        with closing(train(made, cut, data=folder, workers=first)) as running:
            for record in running:
                if record["round"] == last:
                    break
        for _ in train(made, cut, data=folder, workers=then):
            pass
        where = f"{made.name} {made.run}, stopped after round {last} with {first} workers and continued with {then}"
        expect(outcome(cut) == outcome(whole), f"{where}: it ended with other bits")
        shutil.rmtree(whole)
        shutil.rmtree(cut)
    return count


Kinds = Callable[[Path], Iterable[Experiment]]
KINDS: dict[str, Kinds] = {
    "every codec: stopped and continued": lambda _: codecs(),
    "every optimizer and policy": lambda _: trainers(),
    "every head, schedule and device": lambda _: heads_and_devices(),
    "every kind of data set": data_sets,
}
"""What is tried, by the name of its row."""
