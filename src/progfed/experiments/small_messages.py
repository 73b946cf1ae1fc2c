"""Small messages: growing for 1.5 to 3 % of the bytes of end-to-end training in floats, both directions counted.

One setting serves every task: `bytes`, the budget, with which the server chooses the codecs of each round. Everything
else is as in `defaults`, and so is the end-to-end training in floats that runs are compared with. `X-2` is the growing
run of task X for 2 % of its bytes. On CIFAR-10 the codecs of the paper stand beside them, on the uplink alone (`-up`),
as published, and in both directions (`-both`), where models go down as what has changed since the start, too.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from progfed.codec import codec
from progfed.experiments import demo
from progfed.experiments.compression import CODECS
from progfed.experiments.defaults import CIFAR10, HIPPOCAMPUS
from progfed.experiments.pairs import scheduled
from progfed.models.resnet import resnet18
from progfed.runs.experiment import Experiment
from progfed.schedule import Schedule, end_to_end, length, progressive

PAPERS = ("lq-8", "lq-4", "lq-2", "sp-10", "lq-8+sp-10")


def compared(experiment: Experiment, schedule: Schedule, budgets: tuple[float, ...]) -> tuple[Experiment, ...]:
    """End-to-end training in floats, growing in floats, and growing for each of these budgets, in percent."""
    base = replace(experiment, name="small_messages")
    stages, name = schedule[-1].stage, base.run
    whole = scheduled(base, f"{name}-end-to-end", end_to_end(length(schedule), stages=stages))
    growing = scheduled(base, name, schedule, baseline=whole.run)
    small = (
        replace(growing, run=f"{name}-{budget:g}", recipe=replace(growing.recipe, bytes=budget / 100))
        for budget in budgets
    )
    return (whole, growing, *small)


def _with_codec(growing: Experiment, name: str) -> tuple[Experiment, Experiment]:
    """The growing run with a codec of the paper for updates, and for models, too."""
    up = codec(CODECS[name])
    one = replace(growing, run=f"{growing.run}-{name}-up", recipe=replace(growing.recipe, up=up))
    both = replace(
        growing, run=f"{growing.run}-{name}-both", recipe=replace(growing.recipe, up=up, down=up, base="start")
    )
    return one, both


RESNET = replace(
    CIFAR10,
    run="resnet18",
    model=partial(resnet18, 10, heads="grid", width=16),
    recipe=replace(CIFAR10.recipe, local=replace(CIFAR10.recipe.local, epochs=1)),
)

_CIFAR10 = compared(CIFAR10, progressive(100, stages=4), (3, 2, 1.5))
RUNS = (
    *compared(replace(demo.RUNS[0], run="demo"), demo.RUNS[1].recipe.schedule, (2,)),
    *compared(HIPPOCAMPUS, progressive(12, stages=4, lengths=(3, 3, 3, 3)), (2,)),
    *_CIFAR10,
    *compared(RESNET, progressive(100, stages=4), (2,)),
    *(run for name in PAPERS for run in _with_codec(_CIFAR10[1], name)),
)
