"""The small transformer: it sees nothing that comes later, grows by layers, and learns."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from progfed import rng
from progfed.costs.phase import phase_cost
from progfed.errors import UsageError
from progfed.evaluate import token_accuracy
from progfed.losses import token_loss
from progfed.models.gpt import Attention, continued, gpt
from progfed.population import from_clients
from progfed.recipe.rate import Constant
from progfed.recipe.recipe import Local, Recipe
from progfed.runs.experiment import Experiment
from progfed.runs.train import run
from progfed.schedule import Phase, progressive

SMALL = gpt(7, context=12, width=16, layers=5, attention_heads=2, stages=3)


def tokens(number: int, *, time: int = 12, vocabulary: int = 7) -> torch.Tensor:
    return torch.randint(vocabulary, (number, time), generator=rng.generator(0, "tokens"))


def shaken(module: nn.Module) -> nn.Module:
    """The module with every weight moved: fresh layers add nothing."""
    draw = rng.generator(0, "shaken")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.2)
    return module


def test_a_layer_that_has_just_grown_changes_nothing() -> None:
    features = torch.randn(2, 12, 16, generator=rng.generator(0, "features"))
    for block in (2, 3):
        assert torch.equal(SMALL.make(f"E{block}")(features), features)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_later_token_changes_no_earlier_output_and_every_later_one(stage: int) -> None:
    module, before = shaken(SMALL.at(stage)).eval(), tokens(2)
    for place in range(12):
        after = before.clone()
        after[:, place] = (after[:, place] + 1) % 7
        same = (module(before) == module(after)).flatten(2).all(2).all(0)
        assert same.tolist() == [True] * place + [False] * (12 - place)


def test_attention_equals_torchs_own() -> None:
    attention, features = Attention(16, 4), torch.randn(3, 9, 16, generator=rng.generator(0, "features"))
    query, key, value = (part.unflatten(2, (4, 4)).transpose(1, 2) for part in attention.inward(features).chunk(3, 2))
    mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    expected = attention.outward(mixed.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(features), expected)


@pytest.mark.parametrize("time", [1, 5, 12])
def test_outputs_have_a_score_for_every_token_at_every_place(time: int) -> None:
    for stage in (1, 2, 3):
        assert SMALL.at(stage)(tokens(4, time=time)).shape == (4, time, 7)


def test_layers_are_shared_out_and_costs_grow() -> None:
    assert [len(SMALL.make(f"E{block}")) for block in (1, 2, 3)] == [1 + 2, 2, 1]
    costs = [phase_cost(SMALL, Phase(stage, 1)) for stage in (1, 2, 3)]
    layer = 12 * 16 * 16 + 13 * 16
    assert [later.parameters - sooner.parameters for sooner, later in pairwise(costs)] == [
        2 * layer,
        layer,
    ]
    assert costs[0].flops < costs[1].flops < costs[2].flops


def test_a_model_that_cannot_be_is_refused() -> None:
    with pytest.raises(UsageError, match="1 to 2 stages"):
        gpt(layers=2, stages=3)
    with pytest.raises(UsageError, match="does not divide"):
        gpt(width=10, attention_heads=4)
    with pytest.raises(UsageError, match="more than the context"):
        SMALL.at(1)(tokens(1, time=13))


def test_text_goes_on_from_its_start_the_same_for_a_seed() -> None:
    module, start = SMALL.at(3), tokens(1)[0]
    made = [continued(module, start, 20, context=12, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
    assert torch.equal(made[0][:12], start)
    assert len(made[0]) == 32


def test_it_learns_to_count_in_federated_rounds(tmp_path: Path) -> None:
    inputs = (torch.arange(12) + torch.arange(7).unsqueeze(1)) % 7
    pair = inputs, (inputs + 1) % 7
    recipe = Recipe(
        schedule=progressive(12, stages=3),
        cohort=2,
        rate=Constant(0.1),
        local=Local(epochs=5, batch=7, momentum=0.9, loss=token_loss),
    )
    data = from_clients([pair] * 2, test=pair, classes=7)
    experiment = Experiment(name="count", model=SMALL, data=data, recipe=recipe, metric=token_accuracy)
    assert run(experiment, tmp_path)["metric"] > 90


def test_padding_counts_neither_in_the_loss_nor_in_the_accuracy() -> None:
    outputs, targets = torch.randn(3, 5, 7, generator=rng.generator(0, "outputs")), tokens(3, time=5)
    padded = torch.cat([targets, torch.full((3, 2), -100)], 1)
    longer = torch.cat([outputs, torch.full((3, 2, 7), 9.0)], 1)
    torch.testing.assert_close(token_loss(longer, padded), token_loss(outputs, targets))
    torch.testing.assert_close(token_loss(outputs, targets), functional.cross_entropy(outputs.mT, targets))
    assert torch.equal(token_accuracy(longer, padded), token_accuracy(outputs, targets))
    assert float(token_accuracy(outputs, outputs.argmax(-1)).mean()) == 1
