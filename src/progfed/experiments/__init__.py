"""The experiments by name. Each is a module with `RUNS`, and with `PAPER` if it is one of the paper's.

A user's own file has the same form.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

from progfed.errors import ProgfedError, UsageError
from progfed.experiments.printed import Paper
from progfed.runs.experiment import Experiment

NAMES = (
    "demo",
    "codecs",
    "growth",
    "speakers",
    "federated",
    "centralized",
    "optimizers",
    "compression",
    "strategies",
    "stages",
    "discrepancy",
    "cifar10",
    "writers",
    "hippocampus",
    "defaults",
    "small_messages",
    "weak",
)

_FOLDERS: set[Path] = set()
"""Folders of users' files that were loaded."""


def load(name: str) -> tuple[Experiment, ...]:
    """The runs of an experiment of this package, or of a Python file that defines `RUNS` or `EXPERIMENT`."""
    if name.endswith(".py"):
        return _from_file(Path(name))
    if name not in NAMES:
        raise UsageError(f"there is no experiment {name!r}: it is one of {', '.join(NAMES)}, or a Python file")
    runs: tuple[Experiment, ...] = importlib.import_module(f"progfed.experiments.{name}").RUNS
    return runs


def paper(name: str) -> Paper:
    """What the paper shows of an experiment; empty where the experiment is not one of this package."""
    if name not in NAMES:
        return Paper()
    return getattr(importlib.import_module(f"progfed.experiments.{name}"), "PAPER", Paper())


def select(name: str, wanted: Sequence[str]) -> tuple[Experiment, ...]:
    """The runs of an experiment that have these names; all of them where none is named."""
    return named(load(name), wanted)


def named(family: Sequence[Experiment], wanted: Sequence[str]) -> tuple[Experiment, ...]:
    """Those among some runs that have these names, in the order of the runs; all of them where none is named."""
    runs = {experiment.run: experiment for experiment in family}
    for run in wanted:
        if run not in runs:
            raise UsageError(f"experiment {family[0].name!r} has no run {run!r}: it has {', '.join(runs)}")
    return tuple(runs[run] for run in wanted or runs)


def loaded(path: Path) -> ModuleType:
    """A user's Python file, run as a module; an error in it becomes one sentence.

    It can import its neighbours, as `python FILE.py` could; in a folder with `__init__.py` also as `from .neighbour`.
    """
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    loader = SourceFileLoader(path.stem, str(path))
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    module.__package__ = _package(path.resolve().parent)
    try:
        loader.exec_module(module)
    except ProgfedError:
        raise
    except Exception as error:
        raise UsageError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def _package(folder: Path) -> str:
    """Let the modules of a folder be imported; returns the name of the package that the folder is, or an empty one."""
    names: list[str] = []
    _can_import(folder)
    while (folder / "__init__.py").exists():
        names, folder = [folder.name, *names], folder.parent
    if names:
        _can_import(folder)
    return ".".join(names)


def _can_import(folder: Path) -> None:
    """Put a folder first on the path, and forget modules of the same names that files in other folders imported."""
    here = {path.stem for path in folder.glob("*.py")} | {path.parent.name for path in folder.glob("*/__init__.py")}
    for name, module in list(sys.modules.items()):
        parents = Path(getattr(module, "__file__", None) or "").parents
        if name.split(".")[0] in here and folder not in parents and any(other in parents for other in _FOLDERS):
            del sys.modules[name]
    _FOLDERS.add(folder)
    sys.path[:] = [str(folder), *(entry for entry in sys.path if entry != str(folder))]
    importlib.invalidate_caches()


def _from_file(path: Path) -> tuple[Experiment, ...]:
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name the Python file in it that defines EXPERIMENT or RUNS")
    module = loaded(path)
    runs = getattr(module, "RUNS", None) or getattr(module, "EXPERIMENT", None)
    runs = (runs,) if isinstance(runs, Experiment) else runs
    if not isinstance(runs, tuple | list) or not runs or not all(isinstance(run, Experiment) for run in runs):
        found = "" if runs is None else f", not {runs!r:.60}"
        raise UsageError(f"{path} must define EXPERIMENT = progfed.Experiment(…), or RUNS = (…, …){found}")
    return tuple(runs)
