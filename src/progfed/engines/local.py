"""Clients on this machine: in this process, or in persistent worker processes with one thread each.

Every client is trained on one intra-op thread whatever the number of workers: one thread and two give different bits.
"""

from __future__ import annotations

import importlib
import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any

import torch

from progfed.blocks import Progressive
from progfed.client import Learner
from progfed.errors import ProgfedError, TrainingError
from progfed.examples import FederatedData
from progfed.protocol import Memory, Task, Update
from progfed.recipe import Recipe

Arrays = dict[str, dict[str, Any]]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one intra-op thread inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class LocalEngine:
    """Trains the clients of a round on this machine. Use it as a context manager, or call `close`.

    `workers` processes are forked once and live as long as the engine; with one worker there is no process at all.
    Clients are dealt out by their number of examples, largest first, so that workers finish together.
    """

    def __init__(
        self, model: Progressive, data: FederatedData, recipe: Recipe, *, run: str = "0" * 16, workers: int = 1
    ) -> None:
        self.memories: dict[int, Memory] = {}
        self._learner = Learner(model, data, recipe, run)
        self._sizes = data.sizes
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        if workers > 1:
            self._start(workers)

    def __call__(self, tasks: Sequence[Task]) -> Iterator[Update]:
        if not self._pipes:
            for task in tasks:
                with one_thread():
                    update, memory = self._learner(task, self.memories.get(task.client, {}))
                self._remember(task.client, memory)
                yield update
            return
        shares = self._deal(tasks)
        for pipe, share in zip(self._pipes, shares, strict=True):
            self._send(pipe, [(task, to_arrays(self.memories.get(task.client, {}))) for task in share])
        waiting = {pipe: len(share) for pipe, share in zip(self._pipes, shares, strict=True) if share}
        while waiting:
            for pipe in [pipe for pipe in wait(list(waiting)) if isinstance(pipe, Connection)]:
                yield self._receive(pipe)
                waiting[pipe] -= 1
                if not waiting[pipe]:
                    del waiting[pipe]

    def _deal(self, tasks: Sequence[Task]) -> list[list[Task]]:
        """Largest client first, each to the worker with the least to do; a worker trains its share in cohort order."""
        loads = [0] * len(self._pipes)
        shares: list[list[Task]] = [[] for _ in self._pipes]
        for task in sorted(tasks, key=lambda task: -self._sizes[task.client]):
            least = loads.index(min(loads))
            loads[least] += self._sizes[task.client]
            shares[least].append(task)
        return [sorted(share, key=lambda task: task.client) for share in shares]

    def _start(self, workers: int) -> None:
        importlib.import_module("torch._dynamo")  # or each child pays seconds for it at its first step
        fork = multiprocessing.get_context("fork")
        for _ in range(workers):
            ours, theirs = fork.Pipe()
            process = fork.Process(target=_work, args=(self._learner, theirs, [ours, *self._pipes]), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def _remember(self, client: int, memory: Memory) -> None:
        if memory:
            self.memories[client] = memory

    def _send(self, pipe: Connection, share: list[tuple[Task, Arrays]]) -> None:
        try:
            pipe.send(share)
        except OSError as error:
            raise TrainingError(
                f"a worker process has ended ({error}): start again to continue from the checkpoint"
            ) from error

    def _receive(self, pipe: Connection) -> Update:
        try:
            reply = pipe.recv()
        except (EOFError, OSError) as error:
            raise TrainingError(
                "a worker process has ended while training, perhaps for lack of memory: "
                "start again to continue from the checkpoint, with fewer workers if it repeats"
            ) from error
        if isinstance(reply, Exception):
            raise reply
        update, memory = reply
        assert isinstance(update, Update)
        self._remember(update.client, from_arrays(memory))
        return update

    def close(self) -> None:
        """End the workers."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(timeout=5)
            if process.is_alive():
                process.kill()
                process.join()
        self._pipes, self._processes = [], []

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def to_arrays(memory: Memory) -> Arrays:
    """A memory as it crosses to a worker: plain arrays, since tensors would each take a file handle."""
    return {kind: {name: value.numpy() for name, value in tensors.items()} for kind, tensors in memory.items()}


def from_arrays(arrays: Arrays) -> Memory:
    """The memory that `to_arrays` packed."""
    return {kind: {name: torch.from_numpy(value) for name, value in ts.items()} for kind, ts in arrays.items()}


def _work(learner: Learner, pipe: Connection, others: list[Connection]) -> None:
    """A worker: shares of tasks in, one update after the other out, until the engine hangs up."""
    for other in others:
        other.close()  # copies of the other workers' pipes, or a closed engine would not be noticed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the engine's to handle: it finishes the round
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    while True:
        try:
            share = pipe.recv()
        except EOFError:
            return
        for task, memory in share:
            try:
                update, kept = learner(task, from_arrays(memory))
                pipe.send((update, to_arrays(kept)))
            except (BrokenPipeError, ConnectionResetError):
                return
            except ProgfedError as error:
                pipe.send(error)
            except Exception as error:
                pipe.send(RuntimeError(f"client {task.client}, round {task.round}: {type(error).__name__}: {error}"))
