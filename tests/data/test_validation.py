"""Validation data: taken from the clients, by the seed, and nothing of the test set."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from progfed.data import augment, cifar
from progfed.data.validation import held_out
from progfed.errors import DataError, UsageError
from progfed.population import Examples, FederatedData, from_clients
from progfed.runs.identity import identity
from progfed.runs.plan import plan
from progfed.runs.train import run
from progfed.runs.validation import validated
from reliability import data_files as files
from tiny import tiny_data, tiny_experiment


def untested() -> Examples:
    raise AssertionError("the test set was read")


def numbered(sizes: list[int], loaded: list[int] | None = None) -> FederatedData:
    """Clients whose examples are 1000 * client + place, so that each can be told; their test set must not be read."""

    def load(client: int) -> Examples:
        if loaded is not None:
            loaded.append(client)
        numbers = torch.arange(sizes[client]) + 1000 * client
        return Examples({"a": numbers.float()[:, None], "b": [numbers.float()]}, numbers)

    return FederatedData(sizes=sizes, load=load, test=untested, name="numbered")


def told(examples: Examples) -> list[int]:
    assert torch.equal(examples.inputs["a"][:, 0].long(), examples.targets)
    assert torch.equal(examples.inputs["b"][0].long(), examples.targets)
    return examples.targets.tolist()


def test_every_example_is_either_kept_or_held_out_in_its_order() -> None:
    data = numbered([20, 30, 7, 1])
    split = held_out(data)
    kept = [told(split.client(client)) for client in range(4)]
    given = told(split.test_examples())
    assert sorted(sum(kept, given)) == [
        1000 * client + place for client in range(4) for place in range(data.sizes[client])
    ]
    assert [len(one) for one in kept[:2]] == [18, 27]
    assert kept[3] == [3000]  # a client keeps one example at least
    assert all(one == sorted(one) for one in (*kept, given))


def test_the_same_seed_holds_out_the_same_and_another_seed_others() -> None:
    first, again, other = (told(held_out(numbered([50] * 4), seed=seed).test_examples()) for seed in (3, 3, 4))
    assert first == again != other


def test_small_clients_give_their_part_too() -> None:
    assert 35 <= sum(held_out(numbered([5] * 100)).sizes) - 400 <= 65


def test_clients_are_loaded_when_they_are_asked_for() -> None:
    loaded: list[int] = []
    split = held_out(numbered([10] * 1000, loaded))
    assert loaded == []
    split.client(7)
    assert loaded == [7]


def test_whole_clients_can_be_held_out() -> None:
    data = replace(numbered([10] * 10), deepest=tuple(range(1, 11)))
    split = held_out(data, 0.2, clients=True)
    given = {number // 1000 for number in told(split.test_examples())}
    kept = [told(split.client(client))[0] // 1000 for client in range(split.clients)]
    assert sorted([*given, *kept]) == list(range(10))
    assert len(given) == 2
    assert list(split.deepest) == [client + 1 for client in kept]


def test_weak_clients_stay_weak() -> None:
    assert held_out(replace(numbered([10, 10]), deepest=(1, 2))).deepest == (1, 2)


def test_held_out_images_are_normalised_like_the_test_set(tmp_path: Path) -> None:
    files.write_cifar(tmp_path, number=12)
    data = cifar.cifar10(tmp_path, clients=3, verify=False)
    split = held_out(data, 0.5)
    assert split.client(0).inputs.dtype == torch.uint8
    test = split.test_examples()
    assert (test.inputs.dtype, test.number) == (torch.float32, 30)
    back = test.inputs * torch.tensor(augment.CIFAR10[1]).view(-1, 1, 1) + torch.tensor(augment.CIFAR10[0]).view(
        -1, 1, 1
    )
    images = {image.numpy().tobytes() for client in range(3) for image in data.client(client).inputs}
    assert all(image.mul(255).round().byte().numpy().tobytes() in images for image in back)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_is_between_0_and_1(share: float) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        held_out(tiny_data(), share)


@pytest.mark.parametrize("clients", [True, False])
def test_who_has_nothing_to_spare_is_told_so(clients: bool) -> None:
    with pytest.raises(DataError, match="nothing can be held out"):
        held_out(numbered([1]), clients=clients)


def test_inputs_of_different_shapes_get_one_sentence() -> None:
    some = [(torch.zeros(10, length), torch.zeros(10)) for length in (3, 4)]
    with pytest.raises(DataError, match="different shapes do not make one test set"):
        held_out(from_clients(some, test=some[0])).test_examples()


def test_a_validated_experiment_is_another_and_trains(tmp_path: Path) -> None:
    experiment = tiny_experiment(clients=6, examples=45)
    by_value, by_function = validated(experiment), validated(replace(experiment, data=partial(_tiny, 6)))
    assert len({identity(one) for one in (experiment, by_value, by_function)}) == 3
    summaries = [run(one, tmp_path / str(index)) for index, one in enumerate((by_value, by_function))]
    assert summaries[0]["model_sha256"] == summaries[1]["model_sha256"]
    assert summaries[0]["experiment"] == "tiny-validation"
    assert plan(by_value)["total"]["flops"] < plan(experiment)["total"]["flops"]


def _tiny(clients: int, root: Path) -> FederatedData:
    return tiny_data(clients=clients)
