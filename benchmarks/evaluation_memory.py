"""How much memory the evaluation of BraTS-sized volumes takes, in all processes together.

    python benchmarks/evaluation_memory.py --workers 2

The 57 volumes of the paper's test set are held in memory, and some of them are scored by the U-Net of its last stage.
"""

from __future__ import annotations

import argparse
import os
import re
import threading
from pathlib import Path

import torch

from progfed.engines.local import LocalEngine
from progfed.evaluate import dice
from progfed.models.unet import unet
from progfed.population import Examples, from_clients
from progfed.recipe.recipe import Recipe
from progfed.schedule import Phase, end_to_end

VOLUME = (128, 128, 128)


def in_use() -> int:
    """Bytes of memory that this process and its workers hold now; what they share counts once."""
    mine = os.getpid()
    children = Path(f"/proc/{mine}/task/{mine}/children").read_text().split()
    total = 0
    for process in (str(mine), *children):
        try:
            told = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:  # it has ended
            continue
        total += 1024 * int(re.findall(r"^Pss:\s+(\d+) kB", told, re.MULTILINE)[0])
    return total


def peak(workers: int, volumes: int, scored: int) -> int:
    """The most bytes in use at any moment of one evaluation, looked at ten times a second."""
    model, phase = unet(growth="symmetric"), Phase(4, 1)
    held = Examples(torch.zeros(volumes, 4, *VOLUME).normal_(), torch.zeros(volumes, 3, *VOLUME).bernoulli_(0.1))
    test = held.take(slice(0, scored))  # a view: all of them stay in memory
    data = from_clients([(test.inputs[:1], test.targets[:1])], test=(test.inputs[:1], test.targets[:1]))
    params = {name: value for part in model.parts(phase) for name, value in model.init(part, seed=0).items()}
    recipe = Recipe(schedule=end_to_end(1, stages=4), cohort=1)
    done, seen = threading.Event(), [0]

    def look() -> None:
        while not done.wait(0.1):
            seen.append(in_use())

    with LocalEngine(model, data, recipe, workers=workers, test=test, metric=dice) as engine:
        looking = threading.Thread(target=look)
        looking.start()
        try:
            engine.evaluate(phase, params)
        finally:
            done.set()
            looking.join()
    return max(seen)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--volumes", type=int, default=57, help="how many the test set holds")
    parser.add_argument("--scored", type=int, default=4, help="how many of them are scored")
    given = parser.parse_args()
    found = peak(given.workers, given.volumes, given.scored)
    print(f"{found / 2**30:.1f} GiB in all processes with {given.workers} workers, {given.volumes} volumes held")
