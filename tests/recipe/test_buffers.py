"""Models with BatchNorm under lossy codecs: the statistics travel unharmed, and are counted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from progfed import Experiment, Local, LocalEngine, Progressive, Recipe, federate, from_clients, progressive, run, split
from progfed.codec import ExactBuffers, Float, codec, schema_of
from progfed.errors import MessageError
from progfed.population import FederatedData
from progfed.recipe.buffers import with_exact_buffers
from progfed.runs.plan import plan
from progfed.runs.train import train
from progfed.tensors import Tensors
from tiny import tiny_model, tiny_recipe

CODECS = ["fp16", "LQ-2", "TOP-10", "SP-10", "ROT+LQ-4", "LQ-8+SP-25", "DQ-2", "DQ-1bit", "EDEN-1"]
STATISTICS = ("running_mean", "running_var")


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers = [nn.BatchNorm1d(6), nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(8, 3))


def model() -> Progressive:
    return split(net(), stages=2, example=torch.zeros(2, 6))


def data() -> FederatedData:
    """Inputs far from mean 0 and variance 1, with which statistics begin."""
    draw = torch.Generator().manual_seed(0)
    points = [torch.randn(40, 6, generator=draw) * 30 + 100 for _ in range(5)]
    pairs = [(some, some[:, :3].argmax(1)) for some in points]
    return from_clients(pairs[:4], test=pairs[4], classes=3)


def recipe(**changes: Any) -> Recipe:
    local = Local(epochs=2, batch=10, momentum=0.9)
    settings = {"schedule": progressive(6, stages=2, warmup=1), "cohort": 4, "local": local, "rate": 0.05}
    return Recipe(**{**settings, **changes})


def trained(asked: Recipe, *, workers: int = 1) -> tuple[Tensors, int, int]:
    """The parameters in the end, and the bytes down and up."""
    made, people = model(), data()
    with LocalEngine(made, people, asked, workers=workers) as engine:
        *_, last = federate(made, people.sizes, asked, engine)
    assert not last.rejected
    return last.progress.params, last.progress.cost.down_bytes, last.progress.cost.up_bytes


@cache
def with_floats() -> tuple[Tensors, int, int]:
    return trained(recipe())


def tensors() -> Tensors:
    draw = torch.Generator().manual_seed(1)
    return {name: torch.randn(40, generator=draw) * 10**place for place, name in enumerate(("bias", "mean", "var"))}


@pytest.mark.parametrize("name", CODECS)
def test_buffers_arrive_to_the_bit_and_the_rest_as_if_it_were_alone(name: str) -> None:
    sent, plain = tensors(), codec(name)
    around = ExactBuffers(plain, frozenset({"mean", "var", "elsewhere"}))
    message = around.encode(sent, 7)
    arrived = around.decode(memoryview(message), schema_of(sent))
    alone = {"bias": sent["bias"]}
    bias = plain.decode(memoryview(plain.encode(alone, 7)), schema_of(alone))["bias"]
    assert list(arrived) == sorted(sent)
    assert all(torch.equal(arrived[key], sent[key]) for key in ("mean", "var"))
    assert torch.equal(arrived["bias"], bias)
    assert around.exact == plain.exact
    assert len(message) <= around.size(schema_of(sent)) == 2 * 4 * 40 + plain.size(schema_of(alone))
    with pytest.raises(MessageError):
        around.decode(memoryview(message[:100]), schema_of(sent))


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize(
    "changes",
    [{}, {"base": "start"}, {"feedback": True, "delta": True, "base": "start"}],
    ids=["whole", "start", "feedback"],
)
def test_statistics_are_those_of_the_clients_whatever_the_codec(name: str, changes: dict[str, Any]) -> None:
    """The first layer normalises the inputs: its statistics do not depend on weights, so they are those of floats."""
    params, down, up = trained(recipe(up=name, down=name, **changes))
    exact, whole_down, whole_up = with_floats()
    for statistic in STATISTICS:
        found, wanted = params[f"E1.0.{statistic}"], exact[f"E1.0.{statistic}"]
        assert torch.allclose(found, wanted, rtol=1e-5, atol=0)
        assert bool((wanted > 50).all())
    assert all(bool((value > 0).all()) for key, value in params.items() if key.endswith("var"))
    assert down < whole_down
    assert up < whole_up


def test_messages_of_models_without_buffers_are_those_they_were() -> None:
    asked = tiny_recipe(up="LQ-2", down="DQ-2")
    assert with_exact_buffers(asked, tiny_model()) is asked
    floats = recipe()
    assert with_exact_buffers(floats, model()) is floats
    compressed = with_exact_buffers(recipe(up="LQ-2"), model())
    assert with_exact_buffers(compressed, model()) is compressed
    assert isinstance(compressed.down, Float)


@pytest.mark.parametrize("name", ["LQ-2", "TOP-10", "EDEN-1"])
def test_the_plan_counts_what_crosses(name: str) -> None:
    asked = recipe(up=name, down=name)
    planned = plan(Experiment(name="normed", model=model(), data=data(), recipe=asked))["total"]
    _, down, up = trained(asked)
    assert (planned["down_bytes"], planned["up_bytes"]) == (down, up)


def test_workers_and_interruptions_change_no_bit(tmp_path: Path) -> None:
    asked = recipe(up="LQ-2", down="LQ-4", feedback=True, delta=True)
    experiment = Experiment(name="normed", model=model(), data=data(), recipe=asked)
    one, two = (trained(asked, workers=workers)[0] for workers in (1, 2))
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    whole = run(experiment, tmp_path / "whole", workers=1)
    rounds = train(replace(experiment, model=model()), tmp_path / "halves", data=tmp_path, checkpoint_every=1)
    for _ in range(4):
        next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    assert run(experiment, tmp_path / "halves", workers=1)["model_sha256"] == whole["model_sha256"]
