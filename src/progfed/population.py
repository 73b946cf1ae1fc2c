"""What clients hold: the examples of one client, and the population of all clients, whose examples load when needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from progfed import rng
from progfed.devices import Device, Devices, of_clients
from progfed.errors import DataError, ProgfedError, UsageError
from progfed.tensors import leaves, tree_len, tree_map


@dataclass(frozen=True)
class Examples:
    """Inputs and targets; the first dimension of every tensor is the example.

    Args:
        inputs: A tensor, or a tree of tuples, lists and dicts of tensors.
        targets: A tensor.
    """

    inputs: Any
    targets: Tensor

    @property
    def number(self) -> int:
        """How many examples there are."""
        return tree_len(self.inputs)

    def take(self, index: Tensor | slice) -> Examples:
        """The examples at these positions, in this order."""
        return Examples(tree_map(lambda leaf: leaf[index], self.inputs), self.targets[index])


Augment = Callable[[Examples, torch.Generator], Examples]


@runtime_checkable
class Source(Protocol):
    """Examples that are read when they are taken, such as the items of a `Dataset` (`progfed.data.datasets`)."""

    @property
    def number(self) -> int:
        """How many examples there are."""

    def take(self, index: Tensor | slice, *key: rng.Key) -> Any:
        """Read examples.

        Args:
            index: Their positions.
            key: What random transforms draw for, as in `rng.defaults(*key)`; without one every call draws the same.

        Returns:
            `Examples`, or a pair of inputs and targets.
        """


@dataclass(frozen=True)
class Fetched:
    """A source whose examples are checked as they come.

    Args:
        source: Where the examples come from.
        where: What errors call them, such as `client 3`.
        classes: The number of classes; None where targets are not class labels.
    """

    source: Source
    where: str
    classes: int | None = None

    @property
    def number(self) -> int:
        """How many examples there are."""
        return self.source.number

    @property
    def ahead(self) -> bool:
        """Whether the next batch is to be read while the gradients of the batch before are computed."""
        return bool(getattr(self.source, "ahead", False))

    def take(self, index: Tensor | slice, *key: rng.Key) -> Examples:
        """The examples at these positions, in this order."""
        try:
            given = self.source.take(index, *key)
        except DataError as error:
            raise DataError(f"{self.where}: {error}") from error
        except ProgfedError:
            raise
        except Exception as error:
            raise DataError(f"{self.where} cannot be read: {type(error).__name__}: {_first_line(error)}") from error
        examples = ready(given, self.where)
        _check_labels(examples.targets, self.classes, self.where)
        return examples


Held = Examples | Fetched
"""What a client holds, or a test set: tensors, or a source of them. Both have a `number` and `take`."""


def readable(given: Any, where: str, classes: int | None = None) -> Held:
    """What a client holds, checked now where it is tensors, and as it comes where it is a source."""
    if not isinstance(given, Examples) and isinstance(given, Source):
        return Fetched(given, where, classes)
    examples = ready(given, where)
    _check_labels(examples.targets, classes, where)
    return examples


def pieces(held: Held, size: int = 64) -> Iterator[Examples]:
    """All examples in order: tensors as they are, those of a source some at a time."""
    if isinstance(held, Examples):
        yield held
        return
    for start in range(0, held.number, size):
        yield held.take(slice(start, start + size))


def _check_labels(targets: Tensor, classes: int | None, where: str) -> None:
    """Refuse labels outside the classes, where targets are labels of so many classes."""
    if classes is None or targets.is_floating_point() or targets.numel() == 0:
        return
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        bad = low if low < 0 else high
        raise DataError(f"{where} has label {bad}, outside the {classes} classes 0 to {classes - 1}")


def ready(given: Any, where: str) -> Examples:
    """Examples in the form in which training takes them.

    Arrays become tensors, and a list of targets one tensor. Tensors are moved to the processor, without gradients.
    Inputs of other floating types become float32; labels of other integer types become int64, except bytes.

    Args:
        given: `Examples`, or a pair of inputs and targets.
        where: What errors call them, such as `client 3`.
    """
    if isinstance(given, tuple | list) and len(given) == 2:
        given = Examples(*given)
    if not isinstance(given, Examples):
        hint = ", or use from_datasets() for items of a Dataset" if isinstance(given, Dataset | DataLoader) else ""
        raise DataError(
            f"{where} is {type(given).__name__}: give Examples(inputs, targets), or a pair of the two{hint}"
        )
    try:
        examples = Examples(ready_inputs(given.inputs), _targets(given.targets))
        number = examples.number
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{where} cannot be read: {_first_line(error)}") from error
    if len(examples.targets) != number:
        raise DataError(f"{where} has {number} inputs and {len(examples.targets)} targets: give one of each an example")
    return examples


def ready_inputs(tree: Any) -> Any:
    """Inputs as training takes them: a tree of tensors on the processor, without gradients, floats as float32."""
    if isinstance(tree, Mapping):
        return {name: ready_inputs(value) for name, value in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(ready_inputs(value) for value in tree)
    leaf = torch.from_numpy(tree) if isinstance(tree, np.ndarray) else tree
    if not isinstance(leaf, Tensor):
        raise TypeError(f"inputs are tensors, or tuples, lists and dicts of tensors, not {type(leaf).__name__}")
    if not leaf.dim():
        raise TypeError("inputs have a first dimension, the examples, but this is a single number")
    leaf = leaf.detach().cpu()
    return leaf.float() if leaf.is_floating_point() else leaf


def _targets(given: Any) -> Tensor:
    """Targets as one tensor on the processor, with a row for each example."""
    if isinstance(given, Mapping | str):
        raise TypeError(f"targets are one tensor with a row for each example, not {type(given).__name__}")
    targets = torch.as_tensor(given).detach().cpu()
    if not targets.dim():
        raise TypeError("targets have a first dimension, the examples, but this is a single number")
    return targets.long() if targets.dtype in (torch.int8, torch.int16, torch.int32) else targets


def not_finite(held: Held) -> str:
    """A phrase that says where inputs or targets are not finite; empty where all are."""
    for name in ("inputs", "targets"):
        bad = torch.cat([_bad(getattr(piece, name)) for piece in pieces(held)])
        if bad.any():
            first = int(bad.nonzero()[0])
            return f"{name} that are not finite in {int(bad.sum())} of {len(bad)} examples, the first is {first}"
    return ""


def _bad(tree: Any) -> Tensor:
    """Whether each example of a tree of tensors holds a number that is not finite."""
    rows = [
        (~torch.isfinite(leaf)).flatten(1).any(1) if leaf.dim() > 1 else ~torch.isfinite(leaf) for leaf in leaves(tree)
    ]
    return torch.stack(rows).any(0)


def misfit(error: Exception, examples: Examples, made_for: Any, where: str, *, outputs: Any = None) -> ProgfedError:
    """The error for a user whose model, or whose loss or metric, failed on some examples.

    Args:
        error: What was raised.
        examples: The examples on which it was raised.
        made_for: The model's own example: where the inputs differ from it, that is the likely cause.
        where: What the error calls the examples.
        outputs: The model's outputs, where it gave some and the loss or metric failed.
    """
    reason = _first_line(error)
    if "more than 1 value per channel" in reason:
        return DataError(
            f"{where} has a batch of one example, on which batch normalisation cannot learn: "
            "give every client two examples or more and batches of two or more, or use group normalisation"
        )
    if outputs is not None:
        hint = "; class labels are whole numbers: give targets.long()" if examples.targets.is_floating_point() else ""
        return DataError(
            f"{where} has targets {_shown(examples.targets)}, which the loss or metric cannot compare with the model's "
            f"outputs {_shown(outputs)} ({reason}){hint}"
        )
    inputs, example = _shown(examples.inputs), _shown(made_for)
    if inputs != example:
        return DataError(f"{where} has inputs {inputs}, but the model was made for {example} ({reason})")
    return UsageError(f"the model fails on {where}, whose inputs are {inputs} ({reason})")


def _shown(tree: Any) -> str:
    """Types and shapes of a tree of tensors: `float32 [n, 3, 32, 32]`."""
    try:
        found = leaves(tree)
    except TypeError:
        return type(tree).__name__
    return ", ".join(
        f"{str(x.dtype).removeprefix('torch.')} [{', '.join(['n', *map(str, x.shape[1:])])}]" for x in found
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@dataclass(frozen=True)
class FederatedData:
    """A population of clients and a test set.

    Only the sizes are kept, and examples are loaded when they are needed: a million clients cost memory only for those
    in use.

    Args:
        sizes: The number of examples of each client.
        load: A function from the number of a client to its `Examples`, or to a `Source` that reads them batch by batch.
        test: A function that returns the test set, in the same form.
        classes: The number of classes; None where targets are not class labels.
        augment: Applied to each training batch, with a generator keyed by (seed, round, client).
        name: What errors and records call the data.
        deepest: The deepest stage that each client can train; in rounds of deeper stages it trains M^deepest. Empty:
            every client can train every stage.
        plain: Makes a client's examples such as those of the test set. It is needed where only `augment` does that, say
            by normalising bytes, so that examples of clients can be evaluated on (see `data.validation.held_out`).
        devices: The machine of each client, by which a clock counts the seconds of a round: one `Device` for each
            client, one for all, the name of a preset such as `"phone"`, or a `DeviceMix` to draw from. It changes
            nothing in training. Empty: no clock.
        own_tests: A function from the number of a client to the examples that it tests a model on itself; see
            `OnClients`. None: clients have none.
        pieces: The most examples whose gradient each client computes at once, for lack of memory. Larger batches are
            taken in pieces whose gradients are added up, so a step is what it was but for rounding. Empty: whole
            batches.
    """

    sizes: Sequence[int]
    load: Callable[[int], Examples | Source]
    test: Callable[[], Examples | Source]
    classes: int | None = None
    augment: Augment | None = None
    name: str = "data"
    deepest: Sequence[int] = ()
    plain: Callable[[Examples], Examples] | None = None
    devices: Sequence[Device] = ()
    own_tests: Callable[[int], Examples | Source] | None = None
    pieces: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not hasattr(self.sizes, "__len__"):
            raise DataError(f"{self.name}: sizes are a list, the number of examples of each client, not {self.sizes!r}")
        if self.devices != ():
            object.__setattr__(self, "devices", of_clients(self.devices, len(self.sizes), self.name))
        check_deepest(self.deepest, len(self.sizes), self.name)
        if len(self.pieces) and (len(self.pieces) != len(self.sizes) or min(self.pieces) < 1):
            raise DataError(
                f"{self.name}: pieces are 1 or more examples for each of {len(self.sizes)} clients, not "
                f"{tuple(self.pieces)!r:.60}"
            )
        if self.augment is not None and not callable(self.augment):
            raise DataError(f"{self.name}: augment is a function of a batch and a generator, not {self.augment!r}")

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.sizes)

    def client(self, index: int) -> Held:
        """The examples of one client, checked: as many as declared, and labels inside the classes."""
        where = f"{self.name}: client {index}"
        held = readable(self.load(index), where, self.classes)
        number = held.number
        if number == 0:
            raise DataError(f"{where} has no examples: leave it out of the population")
        if number != self.sizes[index]:
            raise DataError(f"{where} was declared with {self.sizes[index]} examples, but has {number}")
        return held

    def client_test(self, index: int) -> Held | None:
        """The examples on which a client tests a model itself, checked; None where clients have none."""
        if self.own_tests is None:
            return None
        held = readable(self.own_tests(index), f"{self.name}: the test examples of client {index}", self.classes)
        if not held.number:
            raise DataError(f"{self.name}: client {index} has no examples to test on: give each client some, or none")
        return held

    def test_examples(self) -> Held:
        """The test set, checked like a client's examples."""
        given = self.test() if callable(self.test) else self.test
        held = readable(given, f"{self.name}: the test set", self.classes)
        if not held.number:
            raise DataError(f"{self.name}: the test set has no examples, so no model can be evaluated: give it some")
        return held

    def only(self, clients: Sequence[int]) -> FederatedData:
        """The population of some of the clients alone, in this order; the test set stays.

        Args:
            clients: Their numbers, such as those of all clients that are not too weak.
        """
        chosen = tuple(clients)
        if not chosen or not all(0 <= client < self.clients for client in chosen):
            raise DataError(f"{self.name}: {chosen!r:.60} are not some of its clients 0 to {self.clients - 1}")
        own = self.own_tests
        return replace(
            self,
            sizes=tuple(self.sizes[client] for client in chosen),
            load=lambda index: self.load(chosen[index]),
            own_tests=None if own is None else lambda index: own(chosen[index]),
            **self.of(chosen),
        )

    def of(self, clients: Sequence[int]) -> dict[str, Any]:
        """What is known of these clients besides their examples: `deepest`, `devices` and `pieces`."""
        known = {"deepest": self.deepest, "devices": self.devices, "pieces": self.pieces}
        return {name: tuple(each[client] for client in clients) if len(each) else () for name, each in known.items()}


def check_deepest(deepest: Sequence[int], clients: int, name: str = "data") -> None:
    """Refuse depths that do not fit the population: one for every client, none below 1."""
    if not deepest:
        return
    if len(deepest) != clients:
        raise DataError(f"{name}: {len(deepest)} depths for {clients} clients: declare the deepest stage of each")
    if min(deepest) < 1:
        client = next(client for client, stage in enumerate(deepest) if stage < 1)
        raise DataError(
            f"{name}: client {client} declares stage {deepest[client]} as its deepest: "
            "who cannot train stage 1 must be left out of the population"
        )


def from_clients(
    clients: Sequence[tuple[Any, Any]],
    test: tuple[Any, Any],
    *,
    classes: int | None = None,
    augment: Augment | None = None,
    name: str = "your data",
    deepest: Sequence[int] = (),
    devices: Devices = (),
    own_tests: Sequence[tuple[Any, Any]] = (),
) -> FederatedData:
    """A population from examples that are in memory already.

    Args:
        clients: A pair of inputs and targets for each client: tensors or arrays, inputs also trees of them.
        test: The test set, as such a pair.
        classes: The number of classes; None where targets are not class labels.
        augment: Applied to each training batch, with a generator keyed by (seed, round, client).
        name: What errors and records call the data.
        deepest: The deepest stage that each client can train; empty: every client can train every stage.
        devices: The machine of each client, for a clock; see `FederatedData`.
        own_tests: A pair for each client, on which it tests the model itself; see `OnClients`.

    >>> data = from_clients([(torch.zeros(3, 2), torch.tensor([0, 1, 1]))], test=(torch.zeros(1, 2), torch.tensor([0])))
    >>> data.clients, data.client(0).number
    (1, 3)
    """
    held = [ready(pair, f"{name}: client {index}") for index, pair in enumerate(clients)]
    if not held:
        raise DataError(f"{name}: there are no clients: give a pair of inputs and targets for each")
    held_out = ready(test, f"{name}: the test set")
    own = [ready(pair, f"{name}: the test examples of client {index}") for index, pair in enumerate(own_tests)]
    if own and len(own) != len(held):
        raise DataError(f"{name}: {len(own)} own tests for {len(held)} clients: give one for each, or none")
    return FederatedData(
        sizes=tuple(examples.number for examples in held),
        load=lambda index: held[index],
        test=lambda: held_out,
        classes=classes,
        augment=augment,
        name=name,
        deepest=deepest,
        devices=of_clients(devices, len(held), name),
        own_tests=(lambda index: own[index]) if own else None,
    )
