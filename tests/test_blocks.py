from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from progfed.blocks import Progressive, biased, pooled_head, state
from progfed.costs.phase import per_example, phase_cost
from progfed.errors import UsageError
from progfed.models.convnet import convnet_cifar, convnet_mnist
from progfed.schedule import Phase, mixed
from tiny import tiny_model

MODELS = [tiny_model(), convnet_mnist(10), convnet_cifar(10)]


def inputs(model: Progressive, batch: int = 3) -> torch.Tensor:
    return torch.rand(batch, *model.example.shape[1:], generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_a_stage_computes_the_composition_of_its_parts_bit_for_bit(model: Progressive) -> None:
    x = inputs(model)
    for stage in range(1, model.stages + 1):
        module = model.at(stage, seed=5).eval()
        features = x
        for block in range(1, stage + 1):
            features = module.get_submodule(f"E{block}")(features)
        assert torch.equal(module(x), module.get_submodule(f"G{stage}")(features))


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
def test_a_stage_is_an_ordinary_module_with_only_its_own_parts(model: Progressive) -> None:
    for stage in range(1, model.stages + 1):
        children = [name for name, _ in model.at(stage).named_children()]
        assert children == [*(f"E{block}" for block in range(1, stage + 1)), f"G{stage}"]


def test_initial_weights_depend_on_seed_and_part_and_on_nothing_else() -> None:
    model = convnet_mnist(10)
    before = torch.get_rng_state()
    alone = model.init("E2", seed=1)
    model.init("E1", seed=1)
    torch.rand(10)
    again = model.init("E2", seed=1)
    assert all(torch.equal(alone[name], again[name]) for name in alone)
    assert not torch.equal(alone["E2.0.weight"], model.init("E2", seed=2)["E2.0.weight"])
    grown = state(model.at(3, seed=1))
    assert all(torch.equal(grown[name], alone[name]) for name in alone)
    torch.set_rng_state(before)


def test_tensors_load_into_a_stage_by_name() -> None:
    model = tiny_model()
    values = {name: torch.full_like(value, 0.25) for name, value in state(model.at(2)).items()}
    assert all((value == 0.25).all() for value in state(model.at(2, values)).values())


def test_asking_for_more_stages_than_blocks_says_so() -> None:
    with pytest.raises(UsageError, match=r"tiny has 3 blocks.*asks for stage 4"):
        tiny_model().at(4)
    with pytest.raises(UsageError, match="as many heads"):
        Progressive(blocks=(nn.Identity,), heads=(), example=torch.zeros(1, 1))


def test_several_heads_give_one_output_each_and_share_the_features() -> None:
    model = tiny_model()
    phase = mixed(6, stages=3)[0]
    module = model.phase_module(phase, seed=1).eval()
    x = inputs(model)
    first, last = module(x)
    assert torch.equal(first, model.at(1, seed=1).eval()(x))
    assert torch.equal(last, model.at(3, seed=1).eval()(x))


def test_a_head_that_is_kept_has_one_name_at_every_stage() -> None:
    model = Progressive(
        blocks=(lambda: nn.Linear(2, 2), lambda: nn.Linear(2, 2)),
        heads=(lambda: nn.Linear(2, 1),) * 2,
        example=torch.zeros(1, 2),
        keep_head=True,
    )
    assert model.parts(Phase(1, 1)) == ("E1", "G")
    assert model.parts(Phase(2, 1)) == ("E1", "E2", "G")
    assert torch.equal(state(model.at(1))["G.weight"], state(model.at(2))["G.weight"])


@pytest.mark.parametrize(
    ("model", "counts"),
    [
        (convnet_mnist(62), [2_366, 22_846, 1_206_590]),
        (convnet_cifar(10), [1_226, 20_042, 56_970, 122_570]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_parameters_per_stage_are_those_of_the_paper(model: Progressive, counts: list[int]) -> None:
    assert [phase_cost(model, Phase(s, 1)).parameters for s in range(1, model.stages + 1)] == counts


@pytest.mark.parametrize(
    ("model", "shares"),
    [(convnet_mnist(62), [0.0110, 0.9008, 1]), (convnet_cifar(10), [0.1209, 0.8472, 0.9847, 1])],
    ids=lambda value: getattr(value, "name", ""),
)
def test_flop_shares_per_stage_are_the_derived_ones(model: Progressive, shares: list[float]) -> None:
    counted = [per_example(model, Phase(s, 1)) for s in range(1, model.stages + 1)]
    assert [count / counted[-1] for count in counted] == pytest.approx(shares, abs=5e-5)


def test_flops_equal_a_count_by_hand() -> None:
    # forward 2mn per layer; backward 2mn for the weights of each, and 2mn for the input of all but the first
    layers = [(6, 5), (5, 5), (5, 4), (4, 3)]
    by_hand = sum(2 * a * b * (2 if i == 0 else 3) for i, (a, b) in enumerate(layers))
    assert per_example(tiny_model(), Phase(3, 1)) == by_hand


def test_frozen_blocks_cost_no_backward_pass() -> None:
    # warm-up of stage 3: forward of all, weight gradients of E3 and G3, input gradient of G3 only
    expected = 2 * (30 + 25) + 2 * 20 * 2 + 2 * 12 * 3
    assert per_example(tiny_model(), Phase(3, 1, trains=(3,), warmup=True)) == expected


def test_a_pooled_head_is_the_mean_over_positions_and_one_layer() -> None:
    head, features = pooled_head(4, 3)(), torch.rand(2, 4, 5, 5)
    weight, bias = state(head)["fc.weight"], state(head)["fc.bias"]
    expected = features.mean((2, 3)) @ weight.T + bias
    assert torch.allclose(head(features), expected, atol=1e-6)


def test_the_buffers_of_a_model_are_those_of_every_block_and_every_head() -> None:
    def normed(width: int) -> nn.Module:
        return nn.Sequential(nn.Linear(6, width), nn.BatchNorm1d(width))

    plain, heads = partial(nn.Linear, 6, 6), (partial(normed, 3), partial(nn.Linear, 6, 3))
    model = Progressive((plain, plain), heads, torch.zeros(1, 6), name="a first head with statistics")
    assert model.buffers() == {"G1.1.running_mean", "G1.1.running_var"}


@pytest.mark.parametrize("make", [partial(nn.Linear, 4, 3, bias=False), partial(nn.Linear, 4, 5)])
def test_a_head_that_has_no_bias_for_each_class_is_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(UsageError, match="a head has no bias of as many"):
        biased(make, (0.1, 0.2, 0.3))()


def test_a_biased_head_starts_with_the_values_that_were_given_and_no_others_changed() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        plain = nn.Linear(4, 3)
        torch.manual_seed(0)
        made = biased(partial(nn.Linear, 4, 3), (0.1, 0.2, 0.3))()
    assert torch.equal(made.bias, torch.tensor((0.1, 0.2, 0.3)))  # type: ignore[arg-type]
    assert torch.equal(made.weight, plain.weight)  # type: ignore[arg-type]
