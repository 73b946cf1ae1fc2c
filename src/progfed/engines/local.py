"""Clients on this machine: in this process, or in persistent worker processes with one thread each.

Every client is trained on one intra-op thread whatever the number of workers: one thread and two give different bits.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import groupby
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from types import TracebackType
from typing import NamedTuple

import torch

from progfed.blocks import Progressive
from progfed.client.kernels import one_thread
from progfed.client.learner import Learner
from progfed.costs import Costs
from progfed.engines.worker import AHEAD, SMALL, Line, hang_up, work
from progfed.errors import UsageError
from progfed.evaluate import Examiner, Judged, accuracy
from progfed.population import FederatedData, Held
from progfed.recipe.recipe import Recipe
from progfed.schedule import Phase
from progfed.tensors import Tensors
from progfed.wire.engine import ClientState, Task, Update
from progfed.wire.state import from_arrays

SPARE = 16
"""Files that can still be opened when all workers are started, or they are too many."""


class Share(NamedTuple):
    """Some tasks of the same model: their place in the cohort's order, and their examples together."""

    place: int
    examples: int
    tasks: list[Task]


class LocalEngine:
    """Trains the clients of a round on this machine. Use it as a context manager, or call `close`.

    `workers` processes are forked once and live as long as the engine; with one worker there is no process at all.
    With `test`, models are evaluated where clients are trained: `evaluate`. On `device="cuda"` there is one replica
    on each of the first `workers` CUDA devices, with a worker of its own where there are several.
    """

    def __init__(
        self,
        model: Progressive,
        data: FederatedData,
        recipe: Recipe,
        *,
        run_id: str = "0" * 16,
        workers: int = 1,
        test: Held | None = None,
        metric: Judged = accuracy,
        device: str = "cpu",
    ) -> None:
        self.client_states: dict[int, ClientState] = {}
        devices = _devices(device, workers)
        self._learners = [Learner(model, data, recipe, run_id, device=place) for place in devices]
        self._examiners = [Examiner(model, test, metric, device=place) for place in devices] if test else []
        self._sizes = data.sizes
        self._lines: dict[Connection, Line] = {}
        if len(devices) > 1:
            # an engine that nobody closes: Python would wait for its workers at exit, and they for it
            Finalize(self, hang_up, args=(self._lines,), exitpriority=1)
            self._start(Costs(model, recipe.method).longest_update(recipe, data.deepest))

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Update]:
        if not self._lines:
            for task in tasks:
                with one_thread():
                    update, state = self._learners[0](task, self.client_states.get(task.client, {}))
                self._remember(task.client, state)
                yield update
            return
        self._settle()
        shares = self._shares(tasks)
        for line in [line for _ in range(AHEAD) for line in self._lines.values()]:
            self._deal(line, shares)
        while busy := [line.pipe for line in self._lines.values() if line.owed]:
            for pipe in wait(busy):
                line = self._lines[pipe]  # type: ignore[index]
                updates = line.receive()
                self._deal(line, shares)
                for update, state in updates:
                    self._remember(update.client, from_arrays(state))
                    yield update

    def evaluate(self, phase: Phase, params: Tensors) -> float:
        """The metric of a phase's model with these tensors on the test set, or the first of several."""
        return next(iter(self.measure(phase, params).values()))

    def measure(self, phase: Phase, params: Tensors) -> dict[str, float]:
        """Every metric of a phase's model with these tensors on the test set, by name."""
        if not self._examiners:
            raise UsageError("this engine was made without a test set: give it `test` to evaluate")
        examiner = self._examiners[0]
        if not self._lines:
            with one_thread():
                return examiner.measure(phase, params)
        self._settle()
        arrays = {name: value.numpy() for name, value in params.items()}
        for line, starts in zip(self._lines.values(), examiner.shares(phase, len(self._lines)), strict=True):
            line.score(phase, arrays, starts)
        pieces = [line.receive() for line in self._lines.values()]
        with one_thread():
            return examiner.values([{name: torch.from_numpy(a) for name, a in piece.items()} for piece in pieces])

    def _shares(self, tasks: Sequence[Task]) -> list[Share]:
        """The tasks in order, one at a time or, of many small ones, several: else talking costs more than training."""
        shares: list[Share] = []
        for _, group in groupby(tasks, key=lambda task: id(task.message)):
            same = list(group)
            size = min(32, max(1, len(tasks) // (32 * len(self._lines)))) if len(same[0].message) <= SMALL else 1
            for start in range(0, len(same), size):
                some = same[start : start + size]
                shares.append(Share(len(shares), sum(self._sizes[task.client] for task in some), some))
        return shares

    def _deal(self, line: Line, shares: list[Share]) -> None:
        """Give a worker the one of the next few shares with the most examples.

        Workers then finish together, and updates still come nearly in the order of the cohort: none is dealt out while
        one far before it waits, so that few wait for their turn in the sum, however large the cohort is.
        """
        if shares:
            last = shares[0].place + 4 * len(self._lines)
            near = [index for index, share in enumerate(shares[: last - shares[0].place]) if share.place < last]
            share = shares.pop(max(near, key=lambda index: shares[index].examples))
            line.train([(task, self.client_states.get(task.client, {})) for task in share.tasks])

    def _settle(self) -> None:
        """Drop what workers still owe to a round that was given up."""
        for line in self._lines.values():
            while line.owed:
                line.receive()

    def _start(self, room: int) -> None:
        try:
            for index in range(len(self._learners)):
                self._start_one(index, room)
            _try_handles(SPARE)
        except OSError as error:
            hang_up(self._lines)
            raise UsageError(
                f"{len(self._learners)} workers cannot be started ({error.strerror}): take fewer with --workers, "
                "or allow more open files (`ulimit -n`) and processes (`ulimit -u`)"
            ) from error

    def _start_one(self, index: int, room: int) -> None:
        fork = multiprocessing.get_context("fork")
        learner, examiner = self._learners[index], self._examiners[index] if self._examiners else None
        ours, theirs = fork.Pipe()
        line = Line(ours, room)
        inherited = [ours, *self._lines]
        process = fork.Process(target=work, args=(learner, examiner, theirs, line.slab, inherited), daemon=True)
        try:
            process.start()
            line.process = process
            self._lines[ours] = line
        finally:
            theirs.close()

    def _remember(self, client: int, state: ClientState) -> None:
        if state:
            self.client_states[client] = state

    def close(self) -> None:
        """End the workers."""
        hang_up(self._lines)

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _try_handles(number: int) -> None:
    """Open so many files and close them again: a run needs some for its records and checkpoints."""
    with ExitStack() as opened:
        for _ in range(number):
            opened.enter_context(open(os.devnull, "rb"))


def _devices(device: str, workers: int) -> list[str]:
    """Where the replicas live: one for every worker, and at most one on each CUDA device."""
    if device == "cpu":
        return ["cpu"] * max(1, workers)
    if device != "cuda":
        raise UsageError(f"a device is 'cpu' or 'cuda', not {device!r}")
    number = min(torch.cuda.device_count(), max(1, workers))
    if not number:
        raise UsageError("no CUDA device is to be seen here: leave out --device, or check the driver with nvidia-smi")
    if number > 1 and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise UsageError("CUDA is in use in this process, which cannot be forked then: make the engine before using it")
    return [f"cuda:{index}" for index in range(number)]
