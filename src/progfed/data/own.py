"""Data that stay on the machines of their owners: each client's examples are read on its own machine only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, overload

from progfed.population import Augment, Examples, FederatedData, Source, readable


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """A population whose examples stay on the clients' machines; use it as the `data` of an experiment.

    Where all clients' folders are one, everything works on one machine as well.

    Args:
        clients: The number of clients.
        load: `load(folder, client)` reads the examples of one client from the data folder of the machine that calls it,
            or makes a source of them, such as `data.datasets.DatasetExamples`.
        test: `test(folder)` reads the examples that the server evaluates on.
        classes: The number of classes; None where targets are not class labels.
        augment: Applied to each training batch, with a generator keyed by (seed, round, client).
        name: What errors and records call the data.
        deepest: The deepest stage that each client can train; empty: every client can train every stage.
    """

    clients: int
    load: Callable[[Path, int], Examples | Source]
    test: Callable[[Path], Examples | Source]
    classes: int | None = None
    augment: Augment | None = None
    name: str = "own data"
    deepest: Sequence[int] = field(default=(), metadata={"later": True})
    # no field: how many examples clients have is no part of what the experiment is
    _sizes: ClassVar[Sequence[int]] = ()

    def knowing(self, sizes: Sequence[int]) -> OwnData:
        """The same population, with the size of each client, for a machine that has none of their examples."""
        told = replace(self)
        object.__setattr__(told, "_sizes", tuple(sizes))
        return told

    def __call__(self, folder: Path) -> FederatedData:
        """The population as this machine sees it, with `folder` as its data folder."""
        return FederatedData(
            sizes=self._sizes or _Counted(self, folder),
            load=lambda client: self.load(folder, client),
            test=lambda: self.test(folder),
            classes=self.classes,
            augment=self.augment,
            name=self.name,
            deepest=self.deepest,
        )


class _Counted(Sequence[int]):
    """Numbers of examples, counted by loading when they are looked at: a machine can count only its own clients'."""

    def __init__(self, data: OwnData, folder: Path) -> None:
        self._data, self._folder = data, folder
        self._known: dict[int, int] = {}

    def __len__(self) -> int:
        return self._data.clients

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[client] for client in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        if index not in self._known:
            loaded = self._data.load(self._folder, index)
            self._known[index] = readable(loaded, f"{self._data.name}: client {index}").number
        return self._known[index]
