"""Clients given as `torch.utils.data.Dataset`: the same training as on tensors, read batch by batch."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import progfed
from progfed import Examples, FederatedData, OnClients, from_clients, from_datasets, partitioned, run
from progfed.data.datasets import DatasetExamples
from progfed.data.own import OwnData
from progfed.data.validation import held_out
from progfed.errors import DataError, ProgfedError, UsageError
from progfed.metrics import accuracy, f1
from progfed.population import Fetched
from progfed.recipe.recipe import Local
from progfed.runs.directory import RunDirectory
from progfed.runs.train import train
from tiny import tiny_data, tiny_experiment, tiny_recipe

Item = Callable[[Tensor, Tensor], Any]


class Items(Dataset[Any]):
    """Examples one at a time, each as `item` makes it."""

    def __init__(self, inputs: Tensor, targets: Tensor, item: Item = lambda x, y: (x, y)) -> None:
        self.inputs, self.truth, self.item = inputs, targets, item

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, place: int) -> Any:
        return self.item(self.inputs[place], self.truth[place])


class Together(Items):
    """Some items at once, as the loaders of torch ask for where a dataset has it."""

    def __getitems__(self, places: list[int]) -> list[Any]:
        return [self[place] for place in places]


def of_tiny(item: Item = lambda x, y: (x, y), kind: type[Items] = Items, **options: Any) -> FederatedData:
    tensors = tiny_data()
    clients = [tensors.load(client) for client in range(tensors.clients)]
    test = tensors.test()
    assert isinstance(test, Examples)
    made = [kind(one.inputs, one.targets, item) for one in clients if isinstance(one, Examples)]
    return from_datasets(
        made, test=kind(test.inputs, test.targets, item), name="tiny data", **{"classes": 3, **options}
    )


def noisy(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A transform that draws from each of the generators that transforms draw from."""
    return x + torch.randn(6) + random.random() + float(np.random.rand()), y


def sha(tmp_path: Path, data: Any, **options: Any) -> str:
    return str(progfed.run(tiny_experiment(data=data), tmp_path, **options)["model_sha256"])


@pytest.mark.parametrize(
    "data",
    [
        of_tiny(),
        of_tiny(kind=Together),
        of_tiny(lambda x, y: (x.numpy().astype(np.float64), int(y))),
        of_tiny(ahead=True),
        of_tiny(collate=lambda items: (torch.stack([x for x, _ in items]), [y for _, y in items])),
    ],
    ids=["items", "items at once", "arrays and numbers", "ahead", "collate"],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_dataset_trains_to_the_bits_of_the_same_tensors(tmp_path: Path, data: FederatedData, workers: int) -> None:
    tensors = progfed.run(tiny_experiment(), tmp_path / "tensors")
    items = progfed.run(tiny_experiment(data=data), tmp_path / "items", workers=workers)
    assert items["model_sha256"] == tensors["model_sha256"]
    assert items["metric"] == tensors["metric"]


def test_clients_test_the_model_on_datasets_of_their_own(tmp_path: Path) -> None:
    tensors = tiny_data()
    pairs = [(one.inputs, one.targets) for one in (tensors.client(c) for c in range(6)) if isinstance(one, Examples)]
    test = tensors.test()
    held = from_clients(pairs, test=(test.inputs, test.targets), own_tests=pairs, classes=3)  # type: ignore[arg-type]
    items = [Items(*pair) for pair in pairs]
    lazy = from_datasets(items, test=test, own_tests=items, classes=3)
    recipe = tiny_recipe(method=OnClients())
    for name, data in (("held", held), ("lazy", lazy)):
        run(tiny_experiment(data=data, recipe=recipe), tmp_path / name)
    one, two = (RunDirectory(tmp_path / name).records() for name in ("held", "lazy"))
    assert [record["on_clients"] for record in one] == [record["on_clients"] for record in two]
    with pytest.raises(DataError, match="5 own tests for 6 clients"):
        from_datasets(items, test=test, own_tests=items[:5])


@pytest.mark.parametrize("workers", [1, 2])
def test_metrics_of_all_predictions_work_with_datasets(tmp_path: Path, workers: int) -> None:
    metrics = {"accuracy": progfed.Metric(accuracy), "f1": progfed.Metric(f1, of="all")}
    tensors, items = (
        progfed.run(tiny_experiment(data=data, metrics=metrics), tmp_path / name, workers=workers)
        for name, data in {"tensors": tiny_data(), "items": of_tiny()}.items()
    )
    assert items["metrics"] == tensors["metrics"]


def test_random_transforms_are_the_same_for_any_number_of_workers_ahead_or_not(tmp_path: Path) -> None:
    plain = sha(tmp_path / "one", of_tiny(noisy))
    assert sha(tmp_path / "two", of_tiny(noisy), workers=2) == plain
    assert sha(tmp_path / "ahead", of_tiny(noisy, ahead=True)) == plain
    assert sha(tmp_path / "ahead of two", of_tiny(noisy, ahead=True), workers=2) == plain
    assert sha(tmp_path / "without", of_tiny()) != plain


def test_an_interrupted_run_with_random_transforms_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = sha(tmp_path / "whole", of_tiny(noisy))
    experiment = tiny_experiment(data=of_tiny(noisy))
    rounds = train(experiment, tmp_path / "cut", data=tmp_path)
    for _ in range(4):
        next(rounds)
    rounds.close()
    assert progfed.run(experiment, tmp_path / "cut")["model_sha256"] == whole


def test_transforms_leave_the_generators_of_the_program_as_they_were() -> None:
    source = DatasetExamples(Items(torch.zeros(4, 6), torch.zeros(4), noisy))
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected = torch.rand(1), random.random(), np.random.rand()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    first, again = source.take(slice(0, 4), 7, "key"), source.take(slice(0, 4), 7, "key")
    assert torch.equal(first.inputs, again.inputs)
    assert not torch.equal(first.inputs, source.take(slice(0, 4), 8, "key").inputs)
    assert (torch.rand(1), random.random(), np.random.rand()) == expected


def words(tokens: list[list[int]]) -> Items:
    """Sentences of different lengths, one after the other."""
    made = Items(torch.arange(len(tokens)), torch.tensor([sum(one) % 2 for one in tokens]))
    made.item = lambda x, y: {"input_ids": torch.tensor(tokens[int(x)]), "label": int(y)}
    return made


def padded(items: list[dict[str, Any]]) -> dict[str, Any]:
    ids = nn.utils.rnn.pad_sequence([item["input_ids"] for item in items], batch_first=True)
    return {"input_ids": ids, "labels": torch.tensor([item["label"] for item in items])}


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 8, padding_idx=0)
        self.rows = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
        self.out = nn.Linear(8, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.words(input_ids).sum(1)
        for row in self.rows:
            x = row(x)
        out: Tensor = self.out(x)
        return out


def test_items_of_different_lengths_are_padded_by_the_batch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = progfed.split(Bag(), stages=2, example={"input_ids": torch.ones(1, 4, dtype=torch.int64)})
    clients = [words([[1 + (i * j) % 8 for j in range(1, 2 + i % 5)] for i in range(7)]) for _ in range(2)]
    recipe = tiny_recipe(schedule=progfed.progressive(4, stages=2), cohort=2)
    data = from_datasets(clients, test=clients[0], collate=padded, classes=2)
    experiment = tiny_experiment(model=model, recipe=recipe, data=data)
    assert 0 <= progfed.run(experiment, tmp_path / "padded")["metric"] <= 100
    bare = tiny_experiment(model=model, recipe=recipe, data=from_datasets(clients, test=clients[0], classes=2))
    with pytest.raises(DataError, match=r"items of different shapes \(input_ids \[\d\].* give collate"):
        progfed.run(bare, tmp_path / "bare")


def test_weak_clients_and_augmentation_work_with_datasets(tmp_path: Path) -> None:
    def shifted(batch: Examples, draw: torch.Generator) -> Examples:
        return Examples(batch.inputs + torch.randn(1, generator=draw), batch.targets)

    deepest = [1, 2, 3, 3, 3, 3]
    tensors = tiny_data()
    held = [tensors.load(client) for client in range(6)]
    plain = progfed.from_clients(
        [(one.inputs, one.targets) for one in held if isinstance(one, Examples)],
        test=tensors.test(),  # type: ignore[arg-type]
        augment=shifted,
        deepest=deepest,
        name="tiny data",
        classes=3,
    )
    items = of_tiny(augment=shifted, deepest=deepest)
    # one batch of a round is augmented at a time on both ways
    assert sha(tmp_path / "items", items) == sha(tmp_path / "tensors", plain)


@pytest.mark.parametrize("how", ["iid", "shards:2", "dirichlet:0.5"])
def test_any_dataset_is_shared_out_exactly_and_by_the_seed(how: str) -> None:
    labels = torch.arange(40) % 4
    whole = Items(torch.arange(40.0), labels)
    parts = partitioned(whole, clients=5, how=how, seed=1)
    assert sorted(int(x) for part in parts for x, _ in part) == list(range(40))  # type: ignore[attr-defined]
    tensors = partitioned(TensorDataset(torch.arange(40.0), labels), clients=5, how=how, seed=1)
    assert [part.indices for part in parts] == [part.indices for part in tensors]
    given = partitioned(whole, clients=5, how=how, seed=1, labels=labels.tolist())
    assert [part.indices for part in given] == [part.indices for part in parts]


def test_own_data_may_be_datasets_too(tmp_path: Path) -> None:
    items = of_tiny()
    own = OwnData(
        clients=6,
        load=lambda folder, client: items.load(client),
        test=lambda folder: items.test(),
        classes=3,
        name="tiny data",
    )
    assert sha(tmp_path / "own", own) == sha(tmp_path / "plain", items)


@pytest.mark.parametrize("clients", [False, True])
def test_examples_of_a_dataset_can_be_held_out_and_are_still_read_when_needed(tmp_path: Path, clients: bool) -> None:
    tensors = held_out(tiny_data(), 0.3, clients=clients)
    items = held_out(of_tiny(), 0.3, clients=clients)
    assert list(items.sizes) == list(tensors.sizes)
    assert isinstance(items.client(0), Fetched)
    assert isinstance(items.test_examples(), Fetched)
    recipe = tiny_recipe(cohort=2)
    one, two = (
        progfed.run(tiny_experiment(data=data, recipe=recipe), tmp_path / name)
        for name, data in {"tensors": tensors, "items": items}.items()
    )
    assert one["model_sha256"] == two["model_sha256"]
    assert one["metric"] == two["metric"]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


class Endless(Dataset[Any]):
    def __getitem__(self, place: int) -> Any:
        return torch.zeros(6), 0


PAIR = Items(torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64))
REFUSED_WHEN_GIVEN: dict[str, tuple[Any, str]] = {
    "one dataset": (PAIR, r"a dataset for each client; one dataset is shared out by progfed\.partitioned"),
    "no clients": ([], "there are no clients"),
    "a stream": ([PAIR, Stream()], "client 1: Stream has no items by number: give a map-style dataset"),
    "no length": ([Endless()], "client 0: Endless has no length: give it __len__"),
    "no dataset": ([5], "client 0: int has no items by number"),
    "several by name": ([{"train": PAIR}], "client 0: a dict is several datasets by name: give one of train"),
    "nothing in it": ([PAIR, Items(torch.zeros(0, 6), torch.zeros(0))], "client 1 has no examples"),
}


@pytest.mark.parametrize("name", REFUSED_WHEN_GIVEN)
def test_what_is_no_dataset_is_refused_when_it_is_given(name: str) -> None:
    datasets, sentence = REFUSED_WHEN_GIVEN[name]
    with pytest.raises(DataError, match=sentence):
        from_datasets(datasets, test=PAIR)


def fails(x: Tensor, y: Tensor) -> Any:
    raise FileNotFoundError("no file scan-7.png")


REFUSED_WHEN_READ: dict[str, tuple[Item, str]] = {
    "targets that are words": (lambda x, y: (x, "cat"), r"targets are numbers or tensors, not str: 'cat'"),
    "no targets": (lambda x, y: {"x": x}, "an item has x, and no targets: name them labels or label"),
    "three things": (lambda x, y: (x, x, y), r"an item is a tuple of 3: give a pair \(input, target\)"),
    "objects": (lambda x, y: (object(), y), "items cannot become one batch .* give collate"),
    "a file that is gone": (fails, "cannot be read: FileNotFoundError: no file scan-7.png"),
    "labels outside": (lambda x, y: (x, y + 1), "has label 3, outside the 3 classes"),
    "words as inputs": (lambda x, y: ("cat", y), "the test set cannot be read: inputs are tensors"),
    "other inputs": (lambda x, y: (x[:5], y), r"inputs float32 \[n, 5\], but the model was made for float32 \[n, 6\]"),
}


@pytest.mark.parametrize("name", REFUSED_WHEN_READ)
@pytest.mark.parametrize("workers", [1, 2])
def test_items_that_cannot_be_used_are_one_sentence(tmp_path: Path, name: str, workers: int) -> None:
    item, sentence = REFUSED_WHEN_READ[name]
    with pytest.raises(ProgfedError, match=sentence) as refused:
        progfed.run(tiny_experiment(data=of_tiny(item)), tmp_path, workers=workers)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("ahead", [False, True])
def test_what_fails_in_the_middle_of_a_round_names_the_client(tmp_path: Path, ahead: bool) -> None:
    data = of_tiny(ahead=ahead)
    bad = Items(torch.randn(9, 6), torch.zeros(9, dtype=torch.int64), lambda x, y: 1 / 0 if x[0] > 0 else (x, y))
    broken = FederatedData(sizes=[9] * 3, load=lambda _: DatasetExamples(bad, ahead=ahead), test=data.test, name="b")
    with pytest.raises(DataError, match=r"b: client \d cannot be read: ZeroDivisionError"):
        progfed.run(tiny_experiment(data=broken, recipe=tiny_recipe(cohort=3)), tmp_path)


def test_numbers_that_are_not_finite_are_found_in_a_dataset(tmp_path: Path) -> None:
    data = of_tiny()
    bad = Items(torch.full((70, 6), 1.0).index_fill(0, torch.tensor([66]), float("nan")), torch.zeros(70).long())
    broken = FederatedData(sizes=[70] * 3, load=lambda _: DatasetExamples(bad), test=data.test, name="b")
    with pytest.raises(DataError, match="inputs that are not finite in 1 of 70 examples, the first is 66"):
        progfed.run(tiny_experiment(data=broken, recipe=tiny_recipe(cohort=3, local=Local())), tmp_path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"how": "dirichlet:0.5", "labels": [0.5] * 4}, "needs one whole number as label for each of 4 items"),
        ({"how": "shards:2", "labels": [1, 2]}, "needs one whole number as label for each of 4 items"),
        ({"how": "by taste"}, "there is no partition 'by taste'"),
    ],
)
def test_a_partition_that_cannot_be_made_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((DataError, UsageError), match=sentence):
        partitioned(PAIR, clients=2, **options)


def test_a_model_of_several_inputs_gets_them_as_a_tuple() -> None:
    pair = Items(torch.zeros(4, 6), torch.zeros(4), lambda x, y: ((x, x), float(y)))
    batch = DatasetExamples(pair).take(slice(0, 3))
    assert isinstance(batch.inputs, tuple)
    assert batch.targets.dtype == torch.float32
