"""Is the data path a bottleneck? Augmentation against training, and a `Dataset` against tensors, on one thread.

Run it as `python benchmarks/data.py`; it prints one line of JSON. A CIFAR-10 client has 500 images. An epoch of
augmentation alternates with one of training, in batches of 50; a round of a client whose examples are items of a
`Dataset` alternates with one of the same examples as tensors, in batches of 20. So drift of the machine meets both
alike, and ratios are taken inside each pair; those of the two paths are of the processor's time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from progfed import (
    Constant,
    FederatedData,
    Local,
    LocalEngine,
    Recipe,
    end_to_end,
    federate,
    from_clients,
    from_datasets,
    rng,
)
from progfed.data.augment import CIFAR10, cifar_training
from progfed.models.convnet import convnet_cifar
from progfed.population import Examples

IMAGES, BATCH = 500, 50


def client() -> Examples:
    """500 random images: what the pixels show does not change the time."""
    generator = rng.generator(0, "benchmark")
    images = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return Examples(images, torch.randint(10, (IMAGES,), generator=generator))


def augmentation_epoch(examples: Examples) -> Callable[[], list[Examples]]:
    augment = cifar_training(CIFAR10)

    def run() -> list[Examples]:
        generator = rng.generator(0, "epoch")
        order = torch.randperm(IMAGES, generator=generator)
        return [augment(examples.take(order[start : start + BATCH]), generator) for start in range(0, IMAGES, BATCH)]

    return run


def training_epoch(batches: list[Examples]) -> Callable[[], float]:
    """Forward, backward and an SGD step for each batch, channels last; the batches are ready beforehand."""
    module = convnet_cifar().at(4).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    inputs = [batch.inputs.contiguous(memory_format=torch.channels_last) for batch in batches]

    def run() -> float:
        loss = torch.zeros(())
        for images, batch in zip(inputs, batches, strict=True):
            optimizer.zero_grad()
            loss = F.cross_entropy(module(images), batch.targets)
            loss.backward()
            optimizer.step()
        return float(loss.detach())

    return run


def rounds(data: FederatedData, number: int) -> Iterator[float]:
    """The processor's seconds of each round of one client that trains the whole ConvNet, on one worker."""
    model = convnet_cifar()
    local = Local(batch=20, momentum=0.9, weight_decay=1e-4)
    recipe = Recipe(schedule=end_to_end(number, stages=model.stages), cohort=1, rate=Constant(0.01), local=local)
    with LocalEngine(model, data, recipe) as engine:
        training = federate(model, data.sizes, recipe, engine)
        for _ in range(number):
            start = time.process_time()
            next(training)
            yield time.process_time() - start


def paths(repeats: int) -> list[tuple[float, float]]:
    """Seconds of a round with tensors, and with a `Dataset` whose items are the same tensors, in turn."""
    examples = client()
    pair = examples.inputs.float() / 255, examples.targets
    held = from_clients([pair], test=pair, classes=10)
    read = from_datasets([TensorDataset(*pair)], test=pair, classes=10)
    warm = 2
    both = [(a, b) for a, b in zip(rounds(held, repeats + warm), rounds(read, repeats + warm), strict=True)]
    return both[warm:]


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=21, help="pairs of augmentation and training")
    parser.add_argument("--rounds", type=int, default=9, help="pairs of rounds with tensors and with a dataset")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    augment = augmentation_epoch(client())
    train = training_epoch(augment())
    for _ in range(3):
        augment(), train()
    pairs = [(seconds(augment), seconds(train)) for _ in range(asked.repeats)]
    turns = paths(asked.rounds)
    result = {
        "augmentation_ms": round(1000 * statistics.median(a for a, _ in pairs), 2),
        "training_ms": round(1000 * statistics.median(t for _, t in pairs), 2),
        "share": round(statistics.median(a / t for a, t in pairs), 4),
        "limit": 0.15,
        "dataset_speed": round(statistics.median(held / read for held, read in turns), 3),
        "dataset_limit": 0.9,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
