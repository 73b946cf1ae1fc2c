"""Split models in the whole of training: engines, codecs, strategies, checkpoints, identities."""

from __future__ import annotations

import copy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from progfed import Experiment, LocalEngine, Phase, Progressive, Quantize, Recipe, federate, from_clients, rng, split
from progfed.blocks import state
from progfed.costs.phase import per_example
from progfed.errors import UsageError
from progfed.population import FederatedData
from progfed.recipe.recipe import Local
from progfed.runs.identity import describe, identity
from progfed.runs.train import train
from progfed.schedule import mixed, progressive
from zoo import GPT, Layer, ResNet, images, labels, tokens


def group(width: int) -> nn.Module:
    return nn.GroupNorm(2, width)


def resnet(norm: Any = group) -> tuple[nn.Module, Progressive]:
    with rng.default(0, "zoo"):
        net = ResNet(norm)
    return net, split(net, stages=3, example=torch.zeros(2, 3, 16, 16), cuts=("layer1", "layer2"))


def population() -> FederatedData:
    with rng.default(0, "zoo"):
        clients = [(images(4), labels(4)) for _ in range(4)]
    return from_clients(clients, test=clients[0], classes=5)


def recipe(**changes: Any) -> Recipe:
    return Recipe(**{"schedule": progressive(4, stages=3, warmup=1), "cohort": 2, "local": Local(batch=2), **changes})


def trained(model: Progressive, how: Recipe, workers: int = 0) -> dict[str, Tensor]:
    data = population()
    with LocalEngine(model, data, how, workers=workers) as engine:
        *_, last = federate(model, data.sizes, how, engine)
    return last.progress.params


@pytest.mark.parametrize(
    "changes",
    [{}, {"up": Quantize(8), "feedback": True, "down": Quantize(8), "delta": True}],
    ids=["float", "compressed"],
)
def test_the_number_of_workers_changes_no_bit(changes: dict[str, Any]) -> None:
    here, there = (trained(resnet()[1], recipe(**changes), workers) for workers in (0, 2))
    assert all(torch.equal(value, there[name]) for name, value in here.items())


def test_a_run_that_was_interrupted_ends_with_the_same_bits(tmp_path: Path) -> None:
    experiment = Experiment(name="split", model=resnet()[1], data=population(), recipe=recipe())
    for _ in train(experiment, tmp_path / "whole", data=tmp_path):
        pass
    rounds = train(experiment, tmp_path / "cut", data=tmp_path)
    next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    again = replace(experiment, model=resnet()[1])
    assert len(list(train(again, tmp_path / "cut", data=tmp_path))) > 0
    whole, cut = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut"))
    assert whole == cut


@pytest.mark.parametrize("codec", ["float", "LQ-2", "TOP-10"])
def test_running_statistics_are_averaged_whatever_the_codec(codec: str) -> None:
    params = trained(resnet(nn.BatchNorm2d)[1], recipe(up=codec, down=codec))
    assert not torch.equal(params["E1.bn1.running_mean"], torch.zeros(8))
    assert bool((params["E1.bn1.running_var"] > 0).all())


def test_several_heads_take_one_run_of_the_model() -> None:
    net, model = resnet()
    early = per_example(model, Phase(1, 1))
    whole = per_example(model, Phase(3, 1))
    both = per_example(model, Phase(3, 1, heads=(1, 3)))
    head = 6 * model.make("G1").fc.weight.numel()  # type: ignore[union-attr, operator]
    assert both == whole + head < whole + early
    inputs = images(2)
    shallow, deep = model.phase_module(Phase(3, 1, heads=(1, 3))).eval()(inputs)
    assert torch.equal(shallow, model.at(1).eval()(inputs))
    assert torch.equal(deep, net.eval()(inputs))
    assert trained(model, recipe(schedule=mixed(3, stages=3)))


def test_two_splits_of_a_model_are_the_same_experiment_only_if_they_are_the_same_split() -> None:
    def named(**options: Any) -> Any:
        with rng.default(0, "zoo"):
            net = ResNet(group)
        return describe(split(net, **{"stages": 2, "example": torch.zeros(2, 3, 16, 16), **options}))

    one = named(cuts=("layer1",))
    others = [
        named(cuts=("layer2",)),
        named(cuts=("layer1",), head=("layer3", "fc")),
        named(cuts=("layer1",), heads=[lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5))]),
        named(cuts=("layer1",), name="mine"),
    ]
    assert one == named(cuts=("layer1",))
    assert all(one != other for other in others)


def test_another_process_gives_a_split_model_the_same_identity() -> None:
    code = (
        "import torch, progfed; from torch import nn; from progfed.runs.identity import describe\n"
        "net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.TransformerEncoderLayer(4, 2, 8), nn.Linear(4, 3))\n"
        "told = describe(progfed.split(net, stages=2, example=torch.zeros(2, 4)))"
    )
    there = subprocess.run([sys.executable, "-c", f"{code}; print(told)"], capture_output=True, text=True, check=True)
    here: dict[str, Any] = {}
    exec(code, here)
    assert there.stdout.strip() == str(here["told"])


def test_what_the_model_has_frozen_stays_as_it_is() -> None:
    with rng.default(0, "zoo"):
        net = ResNet(group)
    net.conv1.requires_grad_(False)
    model = split(net, stages=3, example=torch.zeros(2, 3, 16, 16), cuts=("layer1", "layer2"))
    params = trained(model, recipe())
    assert "E1.conv1.weight" not in params
    assert torch.equal(model.export(params)["conv1.weight"], net.conv1.weight)
    assert not torch.equal(params["E1.layer1.0.conv1.weight"], net.layer1[0].conv1.weight)


class Average(nn.Module):
    """Replaces a buffer in every forward, instead of changing it."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x)
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)
        return self.two(x - self.mean)


def test_a_buffer_that_the_forward_replaces_is_part_of_the_state() -> None:
    net, inputs = Average(), torch.randn(5, 4)
    module = split(net, stages=1, example=inputs).at(1).train()
    for _ in range(2):
        assert torch.equal(module(inputs), net(inputs))
    assert torch.equal(state(module)["E1.mean"], net.mean)


def test_tables_that_no_state_dict_keeps_do_not_travel() -> None:
    model = split(GPT(), stages=2, example=tokens(2))
    assert not any("sines" in name for name in model.init("E1", seed=0))
    assert any("sines" in name for name, _ in model.at(1).named_buffers())


def test_a_stage_is_an_ordinary_module_that_can_be_copied_moved_and_called_functionally() -> None:
    _, model = resnet()
    inputs, stage = images(2), model.at(2).eval()
    expected = stage(inputs)
    twin = copy.deepcopy(stage)
    with torch.no_grad():
        for parameter in stage.parameters():
            parameter.zero_()
    assert torch.equal(twin(inputs), expected)
    assert torch.equal(torch.func.functional_call(stage, dict(twin.named_parameters()), (inputs,)), expected)
    assert twin.to("meta")(inputs.to("meta")).shape == expected.shape


def test_weights_of_an_early_stage_cannot_be_exported() -> None:
    _, model = resnet()
    with pytest.raises(UsageError, match=r"not there yet \(E2"):
        model.export(state(model.at(1)))


def test_a_model_described_by_its_parts_is_exported_under_its_own_names() -> None:
    model = Progressive(
        blocks=(lambda: nn.BatchNorm1d(3),), heads=(lambda: nn.Linear(3, 2),), example=torch.zeros(1, 3)
    )
    module = model.at(1, seed=5)
    fresh = model.at(1)
    fresh.load_state_dict(model.export(state(module)), strict=True)
    assert torch.equal(fresh.G1.weight, module.G1.weight)  # type: ignore[union-attr]


def test_a_head_above_the_blocks_of_its_phase_is_refused() -> None:
    with pytest.raises(UsageError, match="head 3 stands on more blocks than stage 2"):
        resnet()[1].parts(Phase(2, 1, heads=(3,)))


class Late(nn.Module):
    """A parameter of the whole model that only the end uses belongs to the end, wherever it was made."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.embedding, self.h, self.out = nn.Embedding(9, 16), nn.ModuleList([Layer(16), Layer(16)]), nn.Linear(16, 9)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        for layer in self.h:
            x, _ = layer(x)
        return self.out(x * self.scale)


def test_a_parameter_belongs_to_the_block_that_uses_it_not_to_the_module_that_holds_it() -> None:
    model = split(Late(), stages=2, example=torch.zeros(2, 5, dtype=torch.int64), cuts=("h.0",), head="out")
    assert "E2.scale" in model.init("E2", seed=0)
    assert identity(Experiment(name="late", model=model, data=population(), recipe=recipe()))


def fresh() -> Progressive:
    """A model that draws its weights when it is made, as users write it."""
    return split(ResNet(group), stages=3, example=torch.zeros(2, 3, 16, 16), cuts=("layer1", "layer2"))


def seeded(seed: int, **changes: Any) -> Experiment:
    made: dict[str, Any] = {"model": fresh, "data": population(), "recipe": recipe(seed=seed), **changes}
    return Experiment(name="seeds", **made)


def weights(experiment: Experiment) -> Tensor:
    """The first weights of the first block: those of the network, where they are not drawn anew by the seed."""
    return next(iter(experiment.make_model().init("E1", seed=experiment.recipe.seed).values()))


def test_a_seed_makes_the_same_model_every_time_and_another_seed_another_one() -> None:
    torch.manual_seed(1)
    first = weights(seeded(0))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert torch.equal(weights(seeded(0)), first)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(weights(seeded(1)), first)
    kept = seeded(0, model=fresh())
    assert torch.equal(weights(kept), weights(replace(kept, recipe=recipe(seed=1))))


def test_a_model_that_a_function_makes_is_continued_to_the_same_bits(tmp_path: Path) -> None:
    for _ in train(seeded(3), tmp_path / "whole", data=tmp_path):
        pass
    while not (tmp_path / "parts" / "summary.json").exists():
        torch.manual_seed(len(list(tmp_path.rglob("*"))))  # another process would stand elsewhere
        rounds = train(seeded(3), tmp_path / "parts", data=tmp_path)
        next(rounds, None)
        rounds.close()  # type: ignore[attr-defined]
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts")]
    assert models[0] == models[1]


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")  # nothing is run, so no compiler need be loaded


def test_what_is_put_around_a_model_is_taken_off_before_it_is_split() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    plain = split(net, stages=2, example=torch.zeros(2, 6))
    for around in (compiled(net), nn.DataParallel(net), compiled(nn.DataParallel(net))):
        model = split(around, stages=2, example=torch.zeros(2, 6))
        assert (model.name, model.origin) == (plain.name, plain.origin)


def test_a_model_with_compiled_layers_is_refused() -> None:
    net = nn.Sequential(nn.Linear(6, 8), compiled(nn.Linear(8, 8)), nn.Linear(8, 3))
    with pytest.raises(UsageError, match="layer '1' is compiled: split the model before"):
        split(net, stages=2, example=torch.zeros(2, 6))


@pytest.mark.parametrize(
    ("model", "changes", "sentence"),
    [
        (nn.Linear, {}, "split takes a model, an nn.Module that was made"),
        (nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3)).requires_grad_(False), {}, "no parameter of the model learns"),
        (nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3)), {"stages": "2"}, "stages is a number, such as 3, not '2'"),
        (nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3)), {"example": [1.0, 2.0]}, "the example cannot be used"),
    ],
)
def test_what_cannot_be_split_is_one_sentence(model: Any, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        split(model, **{"stages": 1, "example": torch.zeros(2, 6), **changes})


def test_an_example_in_double_precision_or_an_array_stands_for_floats() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    for example in (torch.zeros(2, 6).double(), torch.zeros(2, 6).numpy()):
        assert split(net, stages=1, example=example).example.dtype is torch.float32
