"""Which stages fit into which memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from progfed.costs.devices import deepest_for
from progfed.costs.memory import phase_memory
from progfed.devices import Device
from progfed.errors import DataError
from progfed.models.convnet import convnet_mnist
from progfed.recipe.recipe import Local
from progfed.runs.train import run
from progfed.schedule import Phase
from tiny import tiny_data, tiny_experiment, tiny_model, tiny_recipe

LOCAL = tiny_recipe().local


def peaks() -> list[int]:
    return [phase_memory(tiny_model(), Phase(stage, 1), LOCAL).peak for stage in (1, 2, 3)]


def test_a_device_is_given_the_deepest_stage_whose_peak_it_holds_to_the_byte() -> None:
    one, two, three = peaks()
    memories = (one, two - 1, two, three - 1, three, 10 * three)
    assert deepest_for(tiny_model(), [Device(memory=memory) for memory in memories], LOCAL) == (1, 1, 2, 2, 3, 3)


def test_larger_batches_and_momentum_let_devices_reach_less_far() -> None:
    model = convnet_mnist(classes=10)
    device = Device(memory=phase_memory(model, Phase(3, 1), Local(batch=20)).peak)
    assert deepest_for(model, [device], Local(batch=20)) == (3,)
    assert deepest_for(model, [device], Local(batch=20, momentum=0.9)) < (3,)
    assert deepest_for(model, [device], Local(batch=60)) < (3,)


def test_devices_that_cannot_train_the_first_stage_are_named_in_one_sentence() -> None:
    devices = [Device(memory="1MB"), Device(memory=100), Device(memory=90)]
    with pytest.raises(
        DataError, match=r"2 of 3 clients, the first is 1, cannot train stage 1 of tiny: it takes .* MB"
    ):
        deepest_for(tiny_model(), devices, LOCAL)


def test_depths_from_memory_train_like_depths_that_are_declared(tmp_path: Path) -> None:
    one, two, three = peaks()
    data = replace(tiny_data(), devices=[Device(memory=memory) for memory in (one, three, two, one, three, three)])
    found = deepest_for(tiny_model(), data.devices, LOCAL)
    assert found == (1, 3, 2, 1, 3, 3)
    declared = run(tiny_experiment(data=replace(tiny_data(), deepest=found)), tmp_path / "declared")
    derived = run(tiny_experiment(data=replace(data, deepest=found)), tmp_path / "derived")
    assert derived["model_sha256"] == declared["model_sha256"]
