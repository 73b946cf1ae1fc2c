"""Is the data path a bottleneck? One CIFAR-10 client epoch of augmentation against one of training, on one thread.

Run it as `python benchmarks/data.py`; it prints one line of JSON. Both epochs see 500 images in batches of 50; they
alternate, so that drift of the machine meets both alike, and the ratio is taken inside each pair.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from progfed import rng
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


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=21)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    augment = augmentation_epoch(client())
    train = training_epoch(augment())
    for _ in range(3):
        augment(), train()
    pairs = [(seconds(augment), seconds(train)) for _ in range(repeats)]
    result = {
        "augmentation_ms": round(1000 * statistics.median(a for a, _ in pairs), 2),
        "training_ms": round(1000 * statistics.median(t for _, t in pairs), 2),
        "share": round(statistics.median(a / t for a, t in pairs), 4),
        "limit": 0.15,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
