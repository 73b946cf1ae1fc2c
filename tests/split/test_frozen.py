"""Models of which a part is frozen, such as those with LoRA adapters: only what learns travels and is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from progfed import Experiment, Local, Phase, Progressive, Recipe, from_clients, progressive, rng, run, split
from progfed.costs.phase import phase_cost
from progfed.errors import UsageError
from progfed.population import FederatedData
from progfed.runs.identity import identity
from progfed.runs.train import train

IDS = torch.arange(24).view(2, 12) % 30
EXAMPLE = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


def adapted(seed: int = 0) -> nn.Module:
    """A text classifier with LoRA adapters in its three layers, as PEFT makes it."""
    config = transformers.BertConfig(
        vocab_size=30,
        max_position_embeddings=16,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=4,
    )
    lora = peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=8, target_modules=["query", "value"])
    with rng.default(seed, "zoo"):
        return peft.get_peft_model(transformers.BertForSequenceClassification(config), lora)


def sentences() -> FederatedData:
    draw = rng.generator(0, "sentences")
    ids = torch.randint(0, 30, (40, 12), generator=draw)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    clients = [({key: value[i : i + 8] for key, value in inputs.items()}, ids[i : i + 8, 0] % 4) for i in (0, 8, 16)]
    return from_clients(clients, test=({key: value[24:] for key, value in inputs.items()}, ids[24:, 0] % 4), classes=4)


def experiment(model: Progressive, **changes: Any) -> Experiment:
    settings = {"schedule": progressive(4, stages=3, warmup=1), "cohort": 2, "local": Local(batch=4), **changes}
    return Experiment(name="adapters", model=model, data=sentences(), recipe=Recipe(**settings))


def learning(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in net.named_parameters() if value.requires_grad}


def test_only_adapters_and_heads_are_sent_and_counted() -> None:
    net = adapted()
    model = split(net, stages=3, example=EXAMPLE)
    whole = phase_cost(model, Phase(3, 1))
    assert {name.partition(".")[2] for name in whole.down} == set(learning(net))
    assert whole.up == whole.down
    assert whole.parameters == whole.trained_parameters == sum(value.numel() for value in learning(net).values())
    assert all("lora" in name or name.startswith("G1") for name in phase_cost(model, Phase(1, 1)).down)


def test_training_sends_adapters_only_and_exports_the_whole_model(tmp_path: Path) -> None:
    net = adapted()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    model = split(net, stages=3, example=EXAMPLE)
    summary = run(experiment(model), tmp_path)
    rounds, cohort, adapters = 4 + 2, 2, 4 * sum(value.numel() for value in learning(net).values())
    assert summary["cost"]["down_bytes"] < rounds * cohort * (adapters + 256)
    exported = load_file(tmp_path / "exported.safetensors")
    changed = {name for name, value in exported.items() if not torch.equal(value, before[name])}
    # B begins at zero, so the first gradients of A are zero or too small to change a digit of it
    assert {name for name in learning(net) if "lora_A" not in name} <= changed <= set(learning(net))
    net.load_state_dict(exported, strict=True)
    test = experiment(model).make_data(tmp_path).test_examples().take(slice(None))
    right = net.eval()(**test.inputs).logits.argmax(1) == test.targets
    assert 100 * right.double().mean() == pytest.approx(summary["metric"])


@pytest.mark.parametrize(
    "changes",
    [{}, {"up": "LQ-8", "down": "LQ-8", "feedback": True, "delta": True}],
    ids=["float", "compressed"],
)
def test_an_interrupted_run_of_adapters_ends_with_the_same_bits(tmp_path: Path, changes: dict[str, Any]) -> None:
    def what() -> Experiment:
        return experiment(split(adapted(), stages=3, example=EXAMPLE), **changes)

    whole = run(what(), tmp_path / "whole")
    rounds = train(what(), tmp_path / "halves", data=tmp_path, checkpoint_every=1)
    for _ in range(3):
        next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    assert run(what(), tmp_path / "halves")["model_sha256"] == whole["model_sha256"]


def test_the_same_adapters_on_other_frozen_weights_are_another_experiment() -> None:
    one, same, other = (experiment(split(adapted(seed), stages=3, example=EXAMPLE)) for seed in (0, 0, 1))
    assert identity(one) == identity(same)
    assert identity(one) != identity(other)


def test_a_model_with_nothing_frozen_has_no_digest() -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    assert split(net, stages=1, example=torch.zeros(2, 6)).frozen == ""


def test_a_last_stage_that_is_all_frozen_is_refused() -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    net[2:].requires_grad_(False)
    with pytest.raises(UsageError, match="block 2 and its head are all frozen: take fewer stages"):
        split(net, stages=2, example=torch.zeros(2, 6))


def test_a_frozen_first_block_trains_its_temporary_head_alone(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    net[0].requires_grad_(False)
    model = split(net, stages=2, example=torch.zeros(2, 6))
    assert {name.partition(".")[0] for name in phase_cost(model, Phase(1, 1)).up} == {"G1"}
    pair = torch.randn(8, 6), torch.arange(8) % 3
    what = Experiment(
        name="frozen",
        model=model,
        data=from_clients([pair, pair], test=pair),
        recipe=Recipe(schedule=progressive(4, stages=2, warmup=1), cohort=2),
    )
    run(what, tmp_path)
    exported = load_file(tmp_path / "exported.safetensors")
    assert torch.equal(exported["0.weight"], net[0].weight)
    assert not torch.equal(exported["2.weight"], net[2].weight)
