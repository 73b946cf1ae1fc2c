"""Costs that grow, or must not: with the population, with the number of rounds, and what is paid once."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import codec_costs
import torch
from ours import MODELS, mlp
from workloads import WORKLOADS, clients

from progfed.client.kernels import fast_layout
from progfed.data.synthetic import classification
from progfed.engines.local import LocalEngine
from progfed.evaluate import accuracy, evaluate
from progfed.population import Examples, from_clients
from progfed.recipe.rate import Constant
from progfed.recipe.recipe import Local, Recipe
from progfed.runs import checkpoint
from progfed.runs.experiment import Experiment
from progfed.runs.train import run
from progfed.schedule import Phase, end_to_end
from progfed.server.loop import federate

Numbers = dict[str, Any]


def resident() -> float:
    """Megabytes that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def open_files() -> int:
    """Files that this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def population(sizes: tuple[int, ...] = (1_000, 1_000_000), *, cohort: int = 1000, rounds: int = 4) -> Numbers:
    """Rounds of 1,000 clients out of few and out of a million: seconds and megabytes must not tell them apart."""
    found: Numbers = {}
    for number in sizes:
        data = classification(number, shape=(64,), classes=10, per_client=20)
        plan = Recipe(schedule=(Phase(1, rounds),), cohort=cohort, rate=Constant(0.01), local=Local(batch=10))
        taken, held = [], []
        with LocalEngine(mlp(), data, plan, workers=2) as engine:
            for done in federate(mlp(), data.sizes, plan, engine):
                taken.append(done.cost.seconds)
                held.append(resident())
        found[f"{number:,}"] = {
            "seconds": statistics.median(taken[1:]),
            "megabytes": held[-1],
            "grown": held[-1] - held[0],
        }
    return found


def leaks(rounds: int = 10_000) -> Numbers:
    """Many rounds of a tiny model: memory and open files at a tenth of the way and at the end."""
    data = classification(100, shape=(64,), classes=10, per_client=5)
    plan = Recipe(schedule=(Phase(1, rounds),), cohort=2, rate=Constant(0.01), local=Local(batch=5))
    early: tuple[float, int] | None = None
    began = time.perf_counter()
    with LocalEngine(mlp(), data, plan, workers=2) as engine:
        for done in federate(mlp(), data.sizes, plan, engine):
            if done.number == rounds // 10:
                early = resident(), open_files()
        late = resident(), open_files()
    assert early is not None
    return {
        "rounds": rounds,
        "seconds": time.perf_counter() - began,
        "grown_megabytes": late[0] - early[0],
        "grown_files": late[1] - early[1],
    }


def costs() -> Numbers:
    """What is paid once or now and then: importing, checkpoints, evaluating, codecs."""
    torch.set_num_threads(1)
    program = "import time; t = time.perf_counter(); import progfed; print(time.perf_counter() - t)"
    imports = [float(subprocess.check_output([sys.executable, "-c", program])) for _ in range(3)]
    tensors = codec_costs.resnet18()
    state = checkpoint.Checkpoint(1, {"model": tensors}, {})
    with tempfile.TemporaryDirectory() as folder:
        saved = _median(lambda: checkpoint.save(Path(folder), state))
        loaded = _median(lambda: checkpoint.load(Path(folder)))
    return {
        "import_seconds": statistics.median(imports),
        "checkpoint_resnet18": {"save_ms": 1e3 * saved, "load_ms": 1e3 * loaded},
        "checkpoints_cifar10": checkpointing(),
        "evaluate_1000_images": {name: _evaluation(name) for name in ("W1", "W2")},
        "codecs": [codec_costs.measure(name, tensors, 3) for name in ("float", "LQ-8", "LQ-2", "SP-25", "LQ-8+SP-25")],
    }


def checkpointing(rounds: int = 8) -> Numbers:
    """What saving takes of a run of the CIFAR-10 ConvNet at the default interval: seconds, and the share of them."""
    load, taken = WORKLOADS["W2"], []
    data = from_clients(clients(load), test=clients(load)[0], classes=load.classes)
    local = Local(epochs=load.epochs, batch=load.batch, momentum=load.momentum)
    plan = Recipe(schedule=end_to_end(rounds, stages=4), cohort=load.clients, rate=Constant(load.lr), local=local)
    trained = Experiment(name="checkpoints", model=MODELS["W2"], data=data, recipe=plan)
    save = checkpoint.save

    def timed(root: Path, saved: checkpoint.Checkpoint) -> None:
        began = time.perf_counter()
        save(root, saved)
        taken.append(time.perf_counter() - began)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(checkpoint, "save", timed):
        began = time.perf_counter()
        run(trained, folder, workers=2)
        seconds = time.perf_counter() - began
    return {"rounds": rounds, "seconds": seconds, "checkpoints": len(taken), "share": sum(taken) / seconds}


def _evaluation(name: str) -> float:
    load, model = WORKLOADS[name], MODELS[name]()
    module = fast_layout(model.at(model.stages))
    test = Examples(torch.randn(1000, *load.shape), torch.zeros(1000, dtype=torch.int64))
    return _median(lambda: evaluate(module, test, accuracy))


def _median(function: Callable[[], object], times: int = 3) -> float:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        function()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
