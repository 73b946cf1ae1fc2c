"""Clients whose examples are the items of a `torch.utils.data.Dataset`, or of anything that looks like one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset, default_collate

from progfed import rng
from progfed.data.partition import split
from progfed.errors import DataError
from progfed.population import Augment, Examples, FederatedData, Source, readable

Collate = Callable[[list[Any]], Any]
"""Items of a dataset -> a batch: a pair (inputs, targets), or a dict with `labels`."""

TARGETS = ("labels", "label")
"""Where an item or a batch that is a dict has its targets."""


class DatasetExamples:
    """The items of a map-style dataset as examples, which are read when they are taken: a `Source`.

    While items are read and collated, the default generators of torch, Python and NumPy draw for the key that `take` is
    given, so that random transforms do the same for the same (seed, round, client, batch).

    Args:
        dataset: Its items are pairs (input, target), or dicts with the target under `labels` or `label`.
        collate: Makes a batch of a list of items. By default torch's `default_collate`: items need one shape.
        ahead: Whether the next batch is read while the gradients of the batch before are computed, which pays where
            reading takes long and a core is free.
    """

    def __init__(self, dataset: Any, *, collate: Collate | None = None, ahead: bool = False) -> None:
        self._dataset, self._collate, self.ahead = _as_tensors(dataset), collate, ahead

    @property
    def number(self) -> int:
        """How many items there are."""
        return length(self._dataset)

    def part(self, places: list[int]) -> DatasetExamples:
        """The items at these positions."""
        return DatasetExamples(Subset(self._dataset, places), collate=self._collate, ahead=self.ahead)

    def take(self, index: Tensor | slice, *key: rng.Key) -> Examples:
        """The items at these positions as one batch."""
        places = list(range(self.number)[index]) if isinstance(index, slice) else index.tolist()
        seed, *rest = key or (0,)
        with rng.defaults(int(seed), *rest):
            fetch = getattr(self._dataset, "__getitems__", None)
            items = fetch(places) if callable(fetch) else [self._dataset[place] for place in places]
            if self._collate is None:
                return _collated(items)
            return _pair(self._collate(items), "what collate returns")


def joined(parts: Sequence[DatasetExamples]) -> DatasetExamples:
    """The items of several, one after the other, collated as those of the first."""
    return DatasetExamples(ConcatDataset([part._dataset for part in parts]), collate=parts[0]._collate)


def from_datasets(
    datasets: Sequence[Any],
    *,
    test: Any,
    collate: Collate | None = None,
    classes: int | None = None,
    augment: Augment | None = None,
    ahead: bool = False,
    name: str = "your data",
    deepest: Sequence[int] = (),
    own_tests: Sequence[Any] = (),
) -> FederatedData:
    """A population from one map-style dataset per client; one dataset is shared out among clients by `partitioned`.

    Args:
        datasets: A dataset for each client: its items are pairs (input, target), or dicts with `labels` or `label`.
        test: The dataset to test on, or a pair of inputs and targets.
        collate: Makes a batch of a list of items; None: torch's `default_collate`.
        classes: The number of classes; None where targets are not class labels.
        augment: Applied to each training batch, with a generator keyed by (seed, round, client).
        ahead: Whether the next batch is read while the gradients of the batch before are computed.
        name: What errors and records call the data.
        deepest: The deepest stage that each client can train; empty: every client can train every stage.
        own_tests: A dataset for each client, on which it tests the model itself; see `OnClients`.

    >>> from torch.utils.data import TensorDataset
    >>> dataset = TensorDataset(torch.zeros(6, 2), torch.tensor([0, 1, 1, 0, 1, 1]))
    >>> data = from_datasets(partitioned(dataset, clients=2), test=dataset, classes=2)
    >>> data.clients, data.client(0).take(slice(0, 2)).inputs.shape
    (2, torch.Size([2, 2]))
    """
    if isinstance(datasets, Dataset) or hasattr(datasets, "with_format"):
        raise DataError(
            f"{name}: give a list with a dataset for each client; one dataset is shared out by "
            "progfed.partitioned(dataset, clients=…)"
        )
    datasets = list(datasets)
    if not datasets:
        raise DataError(f"{name}: there are no clients: give a dataset for each")
    sizes = tuple(_length(dataset, f"{name}: client {index}") for index, dataset in enumerate(datasets))

    def source(dataset: Any) -> Source:
        return DatasetExamples(dataset, collate=collate, ahead=ahead)

    where = f"{name}: the test set"
    if not isinstance(test, Examples | tuple):
        _length(test, where)
    if own_tests and len(own_tests) != len(datasets):
        raise DataError(f"{name}: {len(own_tests)} own tests for {len(datasets)} clients: give one for each, or none")
    held_out = readable(test, where) if isinstance(test, Examples | tuple) else source(test)
    return FederatedData(
        sizes=sizes,
        load=lambda index: source(datasets[index]),
        test=lambda: held_out,
        classes=classes,
        augment=augment,
        name=name,
        deepest=deepest,
        own_tests=(lambda index: source(own_tests[index])) if own_tests else None,
    )


def partitioned(
    dataset: Any, *, clients: int, how: str = "iid", seed: int = 0, labels: Any = None
) -> list[Subset[Any]]:
    """A dataset shared out among clients, one subset for each; every item belongs to one client.

    Args:
        dataset: Any map-style dataset.
        clients: The number of clients.
        how: `iid`, `shards:2` or `dirichlet:0.5`.
        seed: The seed of the partition.
        labels: The label of every item, for partitions by label; None: the dataset's `targets`, `labels` or `label`, or
            its column `labels` or `label`, or else every item is read once.
    """
    number = _length(dataset, "the dataset to share out")
    dataset = _as_tensors(dataset)
    if how == "iid":
        known = torch.zeros(number, dtype=torch.int64)
    else:
        known = torch.as_tensor(_labels(dataset) if labels is None else labels)
    if known.shape != (number,) or known.is_floating_point():
        raise DataError(
            f"a partition {how} needs one whole number as label for each of {number} items, not "
            f"{str(known.dtype).removeprefix('torch.')} {list(known.shape)}: give labels=…, or use how='iid'"
        )
    return [Subset(dataset, part.tolist()) for part in split(how, known, clients, seed=seed)]


def length(dataset: Any) -> int:
    """How many items a map-style dataset has."""
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
        raise DataError(
            f"{type(dataset).__name__} has no items by number: give a map-style dataset, with __len__ and __getitem__"
        )
    if isinstance(dataset, Mapping):
        raise DataError(f"a {type(dataset).__name__} is several datasets by name: give one of {', '.join(dataset)}")
    try:
        return len(dataset)
    except (TypeError, NotImplementedError) as error:
        raise DataError(f"{type(dataset).__name__} has no length: give it __len__, the number of its items") from error


def _length(dataset: Any, where: str) -> int:
    try:
        number = length(dataset)
    except DataError as error:
        raise DataError(f"{where}: {error}") from error
    if not number:
        raise DataError(f"{where} has no examples: leave it out, or give it some")
    return number


def _as_tensors(dataset: Any) -> Any:
    """A dataset of Hugging Face whose items are lists, as one whose items are tensors; any other as it is."""
    form = getattr(dataset, "format", None)
    if not hasattr(dataset, "with_format") or (isinstance(form, Mapping) and form.get("type") is not None):
        return dataset
    return dataset.with_format("torch")


def _collated(items: list[Any]) -> Examples:
    """A batch by torch's `default_collate`; Python's floats as float32, as everywhere else in torch."""
    pair = _pair(items[0], "an item")
    if isinstance(pair.targets, str | bytes) or pair.targets is None:
        raise DataError(f"targets are numbers or tensors, not {type(pair.targets).__name__}: {pair.targets!r:.40}")
    try:
        batch = _pair(default_collate(items), "a batch")
    except (RuntimeError, TypeError, KeyError, AttributeError) as error:
        raise DataError(_why(error, items)) from error
    inputs = tuple(batch.inputs) if isinstance(batch.inputs, list) else batch.inputs
    targets = batch.targets
    return Examples(
        inputs, targets.float() if isinstance(targets, Tensor) and targets.dtype == torch.float64 else targets
    )


def _why(error: Exception, items: list[Any]) -> str:
    """What to tell a user whose items `default_collate` does not take."""
    first = _shapes(items[0])
    other = next((shapes for item in items[1:] if (shapes := _shapes(item)) != first), None)
    if other is not None:
        return (
            f"items of different shapes ({first} and {other}) cannot become one batch: give collate=…, "
            "a function that pads a list of items"
        )
    reason = next(iter(str(error).splitlines()), type(error).__name__)
    return f"items cannot become one batch ({reason}): give collate=…, a function of a list of items"


def _shapes(item: Any) -> str:
    """The shapes in an item, as text."""
    if isinstance(item, Mapping):
        return ", ".join(f"{name} {_shapes(value)}" for name, value in item.items())
    if isinstance(item, tuple):
        return ", ".join(_shapes(value) for value in item)
    if isinstance(item, list):
        return str([len(item)])
    return str(list(getattr(item, "shape", ())))


def _pair(given: Any, what: str) -> Examples:
    """Inputs and targets of an item or a batch."""
    if isinstance(given, Examples):
        return given
    if isinstance(given, Mapping):
        for name in TARGETS:
            if name in given:
                return Examples({key: value for key, value in given.items() if key != name}, given[name])
        raise DataError(f"{what} has {', '.join(map(str, given))}, and no targets: name them labels or label")
    if isinstance(given, tuple | list) and len(given) == 2:
        return Examples(*given)
    size = f" of {len(given)}" if isinstance(given, tuple | list) else ""
    raise DataError(f"{what} is a {type(given).__name__}{size}: give a pair (input, target), or a dict with labels")


def _labels(dataset: Any) -> Any:
    """The label of every item: where the dataset keeps them, or else read item by item."""
    if isinstance(dataset, Subset):
        return torch.as_tensor(_labels(dataset.dataset))[list(dataset.indices)]
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) == 2:
        return dataset.tensors[1]
    for name in TARGETS:
        if name in (getattr(dataset, "column_names", None) or ()):
            return dataset[name][:]
    for name in ("targets", *TARGETS):
        found = getattr(dataset, name, None)
        if isinstance(found, Sequence | Tensor) or hasattr(found, "__array__"):
            return found
    with rng.defaults(0, "labels"):
        return [int(_pair(dataset[place], "an item").targets) for place in range(len(dataset))]
