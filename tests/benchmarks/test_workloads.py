"""The benchmark's own promises: every variant computes the same model."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from progfed.costs.phase import phase_cost
from progfed.schedule import Phase

CHECKOUT = Path(__file__).parents[2]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(CHECKOUT / "benchmarks"))
    for name in ("workloads", "conversation", "ours", "figure"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("bench")
@pytest.mark.parametrize("name", ["W0", "W1", "W2", "W3"])
def test_the_peers_model_has_the_parameters_and_flops_of_ours(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    workloads, ours = importlib.import_module("workloads"), importlib.import_module("ours")
    load, model = workloads.WORKLOADS[name], ours.MODELS[name]()
    cost = phase_cost(model, Phase(model.stages, 1))
    assert cost.parameters == load.parameters
    module = workloads.net(load)
    with FlopCounterMode(display=False) as counter:
        module(importlib.import_module("torch").zeros(2, *load.shape)).sum().backward()
    assert counter.get_total_flops() // 2 == cost.flops


@pytest.mark.usefixtures("bench")
def test_the_figure_holds_a_bar_for_every_variant(tmp_path: Path) -> None:
    figure = importlib.import_module("figure")
    told = {"ratio": 1.5, "seconds": 2.0}
    row = {"title": "a round", "variants": {"progfed": told, "plain": told, "floor": told}}
    figure.draw({"W1": {"found": row}}, tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_text().count("<rect x=") == 3
