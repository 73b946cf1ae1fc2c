"""The ten extensions of tests/extensions as experiments on tiny data."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path

from progfed import Experiment, from_clients
from progfed.schedule import progressive
from tiny import tiny_data, tiny_model, tiny_recipe

FOLDER = Path(__file__).parent / "extensions"
NAMES = sorted(path.stem for path in FOLDER.glob("[a-z]*.py") if not path.stem.startswith("test_"))


@cache
def experiment(name: str) -> Experiment:
    """The tiny experiment with an extension."""
    module, data = import_module(f"extensions.{name}"), tiny_data()
    pairs = [(data.client(i).inputs, data.client(i).targets) for i in range(data.clients)]  # type: ignore[union-attr]
    test = data.test_examples()
    population = from_clients(
        pairs,
        test=(test.inputs, test.targets),  # type: ignore[union-attr]
        classes=3,
        own_tests=pairs,
        devices=getattr(module, "DEVICES", ()),
    )
    recipe = tiny_recipe(**{"schedule": progressive(4, stages=3, warmup=1), **module.SETTINGS})
    metrics = getattr(module, "METRICS", {})
    return Experiment(name=name, run=name, model=tiny_model, data=population, recipe=recipe, metrics=metrics)
