"""A tiny experiment as a Flower app, and the processes to try it with; the nodes get it as files, like a user's."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from progfed.runs.directory import RunDirectory

EXPERIMENT = '''"""The tiny experiment of the tests, on nodes."""

import os
import time
from dataclasses import replace
from pathlib import Path

from progfed.codec import Quantize
from progfed.population import Examples, FederatedData
from progfed.schedule import progressive

from .tiny import tiny_data, tiny_experiment, tiny_recipe

SLOW = @SLOW@


def data(root: Path) -> FederatedData:
    population = tiny_data(clients=6)

    def load(client: int) -> Examples:
        time.sleep(SLOW)
        return population.load(client)

    return replace(population, load=load)


EXPERIMENT = tiny_experiment(
    data=data,
    clients=6,
    recipe=tiny_recipe(
        schedule=progressive(@ROUNDS@, stages=2, warmup=1),
        cohort=@COHORT@,
        up=Quantize(8),
        down=Quantize(8),
        feedback=True,
        delta=True,
    ),
)
'''


def make_app(folder: Path, *, rounds: int = 3, cohort: int = 4, slow: float = 0.0) -> Path:
    """The app of `progfed init` with the tiny experiment in it; returns the experiment's file."""
    progfed("init", str(folder))
    shutil.copy(Path(__file__).parents[1] / "tiny.py", folder / "fedapp" / "tiny.py")
    text = EXPERIMENT.replace("@ROUNDS@", str(rounds)).replace("@COHORT@", str(cohort)).replace("@SLOW@", str(slow))
    (folder / "fedapp" / "experiment.py").write_text(text)
    return folder / "fedapp" / "experiment.py"


def progfed(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command as a user would; what it says when it fails is in the error."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    done = subprocess.run(
        [sys.executable, "-m", "progfed", *arguments], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0 or not check, f"{arguments}: {done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done


def outcome(folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """The bits of the model, and the records without what depends on the clock."""
    records = RunDirectory(folder).records()
    for record in records:
        del record["seconds"], record["total"]["seconds"]
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(), records


def alive_with(text: str) -> list[int]:
    """Processes whose command line holds a text: what a folder's federation has started, and its children."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if text in command:
                found.append(int(entry.name))
    return found
