"""Frozen blocks in a run: they stand still, are not sent back, and work with what else a recipe has."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from progfed.codec import codec
from progfed.costs import Costs
from progfed.costs.devices import deepest_for
from progfed.devices import Device
from progfed.engines.local import LocalEngine
from progfed.recipe.optimizers import fedadam
from progfed.recipe.recipe import Recipe
from progfed.runs.plan import plan
from progfed.runs.train import run
from progfed.schedule import end_to_end, freezing
from progfed.server.loop import Round, federate
from progfed.tensors import of_parts, part
from tiny import tiny_data, tiny_experiment, tiny_model, tiny_recipe


def rounds(recipe: Recipe) -> list[Round]:
    with LocalEngine(tiny_model(), tiny_data(), recipe) as engine:
        return list(federate(tiny_model(), tiny_data().sizes, recipe, engine))


@pytest.mark.parametrize(
    "changes",
    [{}, {"server": fedadam(), "up": codec("LQ-8"), "down": codec("LQ-8"), "delta": True}, {"feedback": True}],
    ids=["plain", "compressed changes", "error feedback"],
)
@pytest.mark.parametrize("again", [0, 1])
def test_only_the_blocks_of_the_stage_learn(changes: dict[str, Any], again: int) -> None:
    done = rounds(tiny_recipe(schedule=freezing(6, stages=3, again=again), **changes))
    for before, after in pairwise(done):
        new, old = after.progress.params, before.progress.params
        stays = {part(name) for name in new if name in old and torch.equal(new[name], old[name])}
        assert stays == {f"E{block}" for block in range(1, after.phase.stage - again)}


def test_frozen_blocks_are_not_sent_back() -> None:
    done = rounds(tiny_recipe(schedule=freezing(3, stages=3), cohort=1))
    for one in done:
        own = of_parts(one.progress.params, [f"E{one.phase.stage}", f"G{one.phase.stage}"])
        assert one.cost.up_bytes == 136 + sum(4 * tensor.numel() for tensor in own.values())


def test_a_frozen_run_is_planned_to_the_byte_and_to_its_peak(tmp_path: Path) -> None:
    experiment = tiny_experiment(recipe=tiny_recipe(schedule=freezing(6, stages=3)), clients=6, examples=45)
    planned, summary = plan(experiment)["total"], run(experiment, tmp_path)
    assert [planned[name] for name in ("down_bytes", "up_bytes")] == [
        summary["cost"][name] for name in ("down_bytes", "up_bytes")
    ]
    assert planned["memory_bytes"] == summary["memory_bytes"]
    whole = replace(experiment, recipe=tiny_recipe(schedule=end_to_end(6, stages=3)))
    assert summary["memory_bytes"] < plan(whole)["total"]["memory_bytes"]


def test_a_device_goes_deeper_where_a_schedule_freezes() -> None:
    model, local = tiny_model(), tiny_recipe().local
    schedule = freezing(6, stages=3)
    device = Device(memory=max(Costs(model).memory(phase, local).peak for phase in schedule))
    assert deepest_for(model, [device], local) < (3,)
    assert deepest_for(model, [device], local, schedule=schedule) == (3,)
