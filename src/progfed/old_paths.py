"""The import paths of version 0.1: a module that has moved is still found under its old name, with a warning."""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

MOVED = {
    "progfed.deploy": "progfed.flower.federation",
    "progfed.deploy.keys": "progfed.flower.federation.keys",
    "progfed.engines.flower": "progfed.flower",
    "progfed.engines.flower.supernode": "progfed.flower.supernode",
    "progfed.engines.flower.worker": "progfed.flower.worker",
    "progfed.examples": "progfed.population",
    "progfed.experiment": "progfed.runs.train",
    "progfed.federate": "progfed.server.loop",
    "progfed.growth": "progfed.recipe.growth",
    "progfed.keeping": "progfed.runs.snapshots",
    "progfed.plan": "progfed.runs.plan",
    "progfed.rate": "progfed.recipe.rate",
}
"""Where the modules that version 0.1 documented are today."""


class OldPaths(MetaPathFinder, Loader):
    """Finds a moved module under its old name, for `import` and for `python -m`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of a module that has moved; None for every other module."""
        if fullname not in MOVED:
            return None
        warnings.warn(f"{fullname} has moved to {MOVED[fullname]}", DeprecationWarning, stacklevel=2)
        return ModuleSpec(fullname, self, is_package=any(old.startswith(f"{fullname}.") for old in MOVED))

    def exec_module(self, module: ModuleType) -> None:
        """Give the old module every name of the new one."""
        new = importlib.import_module(MOVED[module.__name__])
        module.__getattr__ = lambda name: getattr(new, name)  # type: ignore[method-assign]

    def get_code(self, fullname: str) -> CodeType:
        """What `python -m` runs: the new module."""
        source = f"import runpy; runpy.run_module({MOVED[fullname]!r}, run_name='__main__', alter_sys=True)"
        return compile(source, f"<{fullname}>", "exec")


def install() -> None:
    """Let old names be found, after all other places were searched."""
    if not any(isinstance(finder, OldPaths) for finder in sys.meta_path):
        sys.meta_path.append(OldPaths())
