"""What must not change: the result with the number of workers, and the memory with the number of rounds."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from progfed.blocks import Progressive
from progfed.engines.local import LocalEngine
from progfed.recipe.recipe import Recipe
from progfed.runs.train import train
from progfed.schedule import progressive
from progfed.server.loop import federate
from progfed.tensors import Tensors
from reliability import expect
from reliability.cases import MODELS, Case, plain, population


def squeezing() -> Progressive:
    """A fourth model for the comparison: convolutions that halve the image, without normalisation."""
    made = MODELS["convolutional"]()

    def halving(inward: int) -> Callable[[], torch.nn.Module]:
        return lambda: torch.nn.Sequential(torch.nn.Conv2d(inward, 4, 3, padding=1), torch.nn.MaxPool2d(2))

    return replace(made, blocks=(halving(1), halving(4), made.blocks[2]), name="squeezing")


FOUR: dict[str, Callable[[], Progressive]] = {**MODELS, "squeezing": squeezing}
GROWING = progressive(6, stages=3, warmup=1)


def same_bits(count: int) -> int:
    """Train `count` models over two growths with one worker and with two; the largest difference must be zero."""
    for name in list(FOUR)[:count]:
        model = FOUR[name]()
        data = population(tuple(model.example.shape[1:]))
        recipe = plain(schedule=GROWING).experiment.recipe
        ends: list[Tensors] = []
        for workers in (1, 2):
            with LocalEngine(model, data, recipe, workers=workers) as engine:
                ends.append(list(federate(model, data.sizes, recipe, engine))[-1].progress.params)
        different = [key for key in ends[0] if not torch.equal(ends[0][key], ends[1][key])]
        expect(not different, f"{name}: two workers gave other bits in {different[:3]}")
    return count


def endurance(rounds: int, folder: Path) -> tuple[float, int]:
    """Bytes by which the memory grows per 1,000 rounds, and by how many files more are open at the end.

    The slope is a least-squares line over the second half, when every cache is full.
    """
    recipe: Recipe = replace(plain().experiment.recipe, schedule=progressive(rounds, stages=3), cohort=1)
    case = Case(replace(plain().experiment, recipe=recipe, evaluate_every=rounds), every=100)
    seen: list[tuple[int, int, int]] = []
    for record in train(case.experiment, folder, data=folder, checkpoint_every=case.every):
        if record["round"] % max(1, rounds // 100) == 0:
            gc.collect()
            seen.append((record["round"], _resident(), len(os.listdir("/proc/self/fd"))))
    half = seen[len(seen) // 2 :]
    times = torch.tensor([float(number) for number, _, _ in half], dtype=torch.float64)
    sizes = torch.tensor([float(size) for _, size, _ in half], dtype=torch.float64)
    away = times - times.mean()
    slope = float((away * (sizes - sizes.mean())).sum() / (away * away).sum())
    return 1000 * slope, half[-1][2] - half[0][2]


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
