"""Robust aggregation: closed forms, laws, and how far a minority can move the result."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reliability.cases import plain

from progfed.errors import UsageError
from progfed.recipe.aggregate import Aggregate, Clipped, Mean, Median, Trimmed, clip, l2
from progfed.runs.identity import describe
from progfed.tensors import Tensors, mean


def votes(*values: float) -> list[tuple[float, Tensors]]:
    return [(float(10 * index + 1), {"w": torch.tensor([value])}) for index, value in enumerate(values)]


def of(aggregate: Aggregate, *values: float) -> float:
    return aggregate(votes(*values))["w"].item()


def test_closed_forms_on_a_handful_of_numbers() -> None:
    assert of(Median(), 3.0, 1.0, 2.0) == 2.0
    assert of(Median(), 1.0, 2.0, 4.0, 100.0) == 3.0
    assert of(Trimmed(0.2), 1.0, 2.0, 3.0, 4.0, 1000.0) == 3.0
    assert of(Trimmed(0.2), *[float(v) for v in range(10)]) == 4.5
    assert of(Trimmed(0.0), 1.0, 2.0, 6.0) == 3.0
    assert of(Clipped(1.0, Median()), 0.5, 5.0, -7.0) == 0.5


def test_the_default_is_the_streaming_mean_to_the_bit() -> None:
    draw = torch.Generator().manual_seed(0)
    updates = [(float(i + 1), {"w": torch.randn(50, generator=draw)}) for i in range(7)]
    assert torch.equal(plain().experiment.recipe.combine(iter(updates), 1)["w"], mean(updates)["w"])


def test_an_aggregate_takes_each_name_over_the_updates_that_have_it() -> None:
    updates = [(1.0, {"a": torch.tensor([1.0])}), (1.0, {"a": torch.tensor([3.0]), "b": torch.tensor([9.0])})]
    for aggregate in (Mean(), Median(), Trimmed(0.2), Clipped(100.0)):
        assert {name: value.item() for name, value in aggregate(updates).items()} == {"a": 2.0, "b": 9.0}


@given(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=12))
def test_median_and_trimmed_mean_agree_with_numpy_and_not_with_the_weights(values: list[float]) -> None:
    assert of(Median(), *values) == pytest.approx(float(np.median(np.float64(values))), rel=1e-5, abs=1e-4)
    drop = int(0.2 * len(values) + 1e-9)
    kept = np.sort(np.float64(values))[drop : len(values) - drop]
    assert of(Trimmed(0.2), *values) == pytest.approx(float(kept.mean()), rel=1e-4, abs=1e-3)


@given(st.lists(st.floats(-1, 1, width=32), min_size=8, max_size=8), st.floats(-1e6, 1e6, width=32))
def test_a_fifth_of_the_clients_cannot_leave_the_range_of_the_others(honest: list[float], evil: float) -> None:
    for aggregate in (Median(), Trimmed(0.2)):
        assert min(honest) - 1e-5 <= of(aggregate, *honest, evil, evil) <= max(honest) + 1e-5


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=6), st.floats(0.125, 50, width=32))
def test_a_clipped_update_keeps_its_direction_and_never_exceeds_the_norm(values: list[float], norm: float) -> None:
    update = {str(index): torch.tensor([value]) for index, value in enumerate(values)}
    clipped = clip(update, norm)
    assert l2(clipped) <= norm * (1 + 1e-5)
    if l2(update) <= norm:
        assert all(torch.equal(clipped[name], update[name]) for name in update)
    else:
        assert l2(clipped) == pytest.approx(norm, rel=1e-4)
        factor = norm / l2(update)
        assert all(clipped[name].item() == pytest.approx(factor * update[name].item(), rel=1e-4) for name in update)


def test_an_aggregate_is_part_of_what_an_experiment_is() -> None:
    assert describe(plain(aggregate=Trimmed(0.4)).experiment)["recipe"]["aggregate"] == {
        "type": "Trimmed",
        "share": 0.4,
    }


@pytest.mark.parametrize("make", [lambda: Trimmed(0.5), lambda: Trimmed(-0.1), lambda: Clipped(0.0)])
def test_impossible_settings_are_refused(make: object) -> None:
    with pytest.raises(UsageError):
        make()  # type: ignore[operator]
