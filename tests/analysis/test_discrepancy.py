"""alpha_t and q_t: closed forms, an oracle, and a run's own models."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from progfed.analysis import Trained, discrepancy, measure
from progfed.analysis.discrepancy import compare, gradient, sampled, shared
from progfed.blocks import hold
from progfed.errors import StorageError, UsageError
from progfed.models.unet import unet
from progfed.population import Examples, from_clients
from progfed.runs.snapshots import kept, read_model
from progfed.runs.train import train
from progfed.schedule import Phase
from tiny import tiny_data, tiny_experiment, tiny_model, tiny_recipe


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """The tiny experiment, trained with every second model kept."""
    path = tmp_path_factory.mktemp("run")
    for _ in train(tiny_experiment(), path, data=path, keep_every=2):
        pass
    return of(path)


def of(path: Path) -> Trained:
    records = [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]
    models = tuple((number, records[number - 1]["stage"], file) for number, file in kept(path).items())
    return Trained(path, tiny_model(), tiny_data(), tiny_recipe().seed, functional.cross_entropy, models)


def flat(tensors: dict[str, torch.Tensor], names: list[str]) -> torch.Tensor:
    return torch.cat([tensors[name].flatten().double() for name in names])


def test_alpha_and_q_in_closed_form() -> None:
    full = {"E1": torch.tensor([1.0, 2.0]), "G2": torch.tensor([2.0])}
    alpha, q, norm = compare(full, {"E1": torch.tensor([2.0, 4.0])})
    assert (alpha, norm) == (0.5, math.sqrt(20))
    assert q == pytest.approx(3 / (0.5 * math.sqrt(20)))


def test_alpha_is_at_most_one() -> None:
    alpha, q, _ = compare({"E1": torch.tensor([3.0])}, {"E1": torch.tensor([2.0])})
    assert (alpha, q) == (1, 1.5)


def test_where_gradients_disagree_q_has_no_meaning() -> None:
    assert compare({"E1": torch.tensor([-1.0])}, {"E1": torch.tensor([2.0])})[:2] == (-0.5, None)
    assert compare({"E1": torch.tensor([1.0])}, {"E1": torch.tensor([0.0])})[:2] == (None, None)


def test_bytes_become_numbers_as_in_training_and_alike_in_every_round() -> None:
    pixels = [(torch.randint(256, (4, 3), dtype=torch.uint8), torch.zeros(4).long()) for _ in range(3)]

    def noisy(examples: Examples, draw: torch.Generator) -> Examples:
        noise = torch.rand(examples.inputs.shape, generator=draw)
        return Examples(examples.inputs / 255 + noise, examples.targets)

    data = from_clients(pixels, test=pixels[0], augment=noisy)
    first, again = (torch.cat([piece.inputs for piece in sampled(data, 7, seed=3)]) for _ in range(2))
    assert first.shape == (7, 3)
    assert torch.equal(first, again)
    assert not torch.equal(first, torch.cat([piece.inputs for piece in sampled(data, 7, seed=4)]))


def test_every_second_model_and_the_last_of_each_phase_is_kept(trained: Trained) -> None:
    rounds = [number for number, _, _ in trained.models]
    phases = tiny_recipe().schedule
    ends = [sum(phase.rounds for phase in phases[: index + 1]) for index in range(len(phases))]
    assert rounds == sorted({*range(2, ends[-1] + 1, 2), *ends})


def test_the_kept_model_of_the_last_round_is_the_final_one(trained: Trained) -> None:
    assert trained.models[-1][2].read_bytes() == (trained.path / "model.safetensors").read_bytes()


def test_keeping_models_changes_no_bit_of_the_run(trained: Trained, tmp_path: Path) -> None:
    for _ in train(tiny_experiment(), tmp_path, data=tmp_path):
        pass
    assert (tmp_path / "model.safetensors").read_bytes() == (trained.path / "model.safetensors").read_bytes()
    assert kept(tmp_path) == {}


def test_a_run_that_is_stopped_and_continued_keeps_the_same_models(trained: Trained, tmp_path: Path) -> None:
    going = train(tiny_experiment(), tmp_path, data=tmp_path, keep_every=2, checkpoint_every=3)
    for _ in range(4):
        next(going)
    going.close()  # type: ignore[attr-defined]
    for _ in train(tiny_experiment(), tmp_path, data=tmp_path, keep_every=2):
        pass
    assert {n: path.read_bytes() for n, path in kept(tmp_path).items()} == {
        n: path.read_bytes() for n, path in kept(trained.path).items()
    }


def test_models_cannot_be_kept_every_zero_rounds(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not every 0"):
        list(train(tiny_experiment(), tmp_path, data=tmp_path, keep_every=0))


def test_measurements_agree_with_the_definition_written_out(trained: Trained) -> None:
    data, model = tiny_data(), tiny_model()
    clients = [data.client(index) for index in range(data.clients)]
    inputs, targets = (torch.cat(parts) for parts in zip(*((c.inputs, c.targets) for c in clients), strict=True))

    def grads(stage: int, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        module = model.at(stage, tensors).eval()
        functional.cross_entropy(module(inputs), targets).backward()
        return {name: value.grad for name, value in module.named_parameters()}  # type: ignore[misc]

    for found, (_, stage, path) in zip(measure(trained), trained.models, strict=True):
        sub = read_model(path)
        whole = grads(3, sub | {n: v for n, v in hold({}, model, Phase(3, 1), seed=3).items() if n not in sub})
        own = grads(stage, sub)
        names = [name for name in own if name in whole]
        projected, full = flat(own, names), flat(whole, list(whole))
        alpha = min(1.0, float(flat(whole, names) @ projected / projected.square().sum()))
        assert found.alpha == pytest.approx(alpha, rel=1e-4)
        if alpha > 0:
            assert found.q == pytest.approx(float(full.norm() / (alpha * projected.norm())), rel=1e-4)


def test_in_the_last_stage_alpha_and_q_are_exactly_one(trained: Trained) -> None:
    last = [one for one in measure(trained) if one.stage == 3]
    assert last
    assert {(one.alpha, one.q) for one in last} == {(1.0, 1.0)}


def test_a_head_is_shared_in_the_last_stage_only_unless_it_is_kept() -> None:
    assert shared(tiny_model(), 2) == ("E1", "E2")
    assert shared(tiny_model(), 3) == ("E1", "E2", "E3", "G3")
    assert shared(unet(widths=(2, 4), in_channels=1, stages=2, size=4), 1) == ("E1", "G")


def test_the_gradient_does_not_depend_on_how_the_examples_are_cut(trained: Trained) -> None:
    whole = list(sampled(tiny_data(), None, 0))
    module = tiny_model().at(3)
    apart = [piece.take(slice(at, at + 1)) for piece in whole for at in range(piece.number)]
    one, other = (gradient(module, pieces, functional.cross_entropy) for pieces in (whole, apart))
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=1e-7, rtol=1e-5)


def test_a_sample_has_as_many_examples_as_asked_and_is_the_same_every_time() -> None:
    data = tiny_data()
    for number in (1, 7, sum(data.sizes), 10_000):
        found = [torch.cat([piece.inputs for piece in sampled(data, number, 5)]) for _ in range(2)]
        assert len(found[0]) == min(number, sum(data.sizes))
        assert torch.equal(*found)
        assert len(found[0].unique(dim=0)) == len(found[0])


def test_measurements_are_read_as_they_were_written(trained: Trained, tmp_path: Path) -> None:
    found = list(measure(trained, examples=10))
    discrepancy.write(found, tmp_path)
    assert discrepancy.read(tmp_path) == tuple(found)
    assert discrepancy.read(tmp_path / "absent") == ()


@pytest.mark.parametrize("text", ["{}\n", "[1]\n", "x\n", '{"round": 1}\n'])
def test_damaged_measurements_are_one_clear_error(tmp_path: Path, text: str) -> None:
    (tmp_path / discrepancy.FILE).write_text(text)
    with pytest.raises(StorageError, match=r"damaged .* make it again with `progfed analyse`"):
        discrepancy.read(tmp_path)
