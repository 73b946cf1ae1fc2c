"""The two ends of a line between the local engine and a worker process: shares of tasks out, updates back.

Large updates cross in memory that both processes share; everything else goes through a pipe. A worker never has more
than two shares in hand, and a share of large updates is one task, so two places for updates are always enough.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from progfed.client.learner import Learner
from progfed.errors import ProgfedError, TrainingError
from progfed.evaluate import Examiner
from progfed.wire.engine import ClientState, Task, Update
from progfed.wire.state import Arrays, from_arrays, to_arrays

AHEAD = 2
"""Shares that a worker has in hand: the one it trains and the one after it, so that it never waits for the engine."""

SMALL = 32 * 1024
"""Messages up to this length go through the pipe: below it, shared memory saves nothing."""


class Line:
    """The engine's end. `owed` counts the replies to come; `down` is the model that the worker was sent last."""

    def __init__(self, pipe: Connection, room: int) -> None:
        self.pipe = pipe
        self.slab = mmap.mmap(-1, AHEAD * room) if room > SMALL else None
        self.owed = 0
        self.process: Any = None
        self._down: bytes | None = None

    def train(self, share: Sequence[tuple[Task, ClientState]]) -> None:
        """Hand over tasks that start from the same model; it crosses only where it is not there yet."""
        message = share[0][0].message
        if message is not self._down:
            self._send(("down", message))
            self._down = message
        self._send(("train", [(_carrying(b"", task), to_arrays(state)) for task, state in share]))
        self.owed += 1

    def score(self, *question: Any) -> None:
        """Ask for the scores of a model on some of the test set."""
        self._send(("score", question))
        self.owed += 1

    def receive(self) -> Any:
        """The next reply: updates with the states of their clients, or scores."""
        try:
            reply = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise TrainingError(
                "a worker process has ended while training, perhaps for lack of memory: "
                "start again to continue from the checkpoint, with fewer workers if it repeats"
            ) from error
        self.owed -= 1
        if isinstance(reply, Exception):
            raise reply
        if isinstance(reply, tuple):
            client, start, length, state = reply
            assert self.slab is not None
            return [(Update(client, self.slab[start : start + length]), state)]
        return reply

    def _send(self, message: Any) -> None:
        try:
            self.pipe.send(message)
        except OSError as error:
            raise TrainingError(
                f"a worker process has ended ({error}): start again to continue from the checkpoint"
            ) from error

    def end(self, patience: float) -> None:
        """See off a worker that was hung up on: one that is idle ends by itself, one that trains need not go on."""
        self.process.join(timeout=patience)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()
        if self.slab is not None:
            self.slab.close()


def hang_up(lines: dict[Connection, Line]) -> None:
    """End all workers, within about a second."""
    for pipe in lines:
        pipe.close()  # all of them first, so that the workers end at the same time
    end = time.monotonic() + 1.0
    for line in lines.values():
        line.end(max(end - time.monotonic(), 0.0))
    lines.clear()


def work(
    learner: Learner,
    examiner: Examiner | None,
    pipe: Connection,
    slab: mmap.mmap | None,
    others: list[Connection],
) -> None:
    """The worker's end: answers until the engine hangs up."""
    for other in others:
        other.close()  # copies of the other workers' pipes, or a closed engine would not be noticed
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all processes at once: the engine finishes the round
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_engine, daemon=True).start()
    torch.set_num_threads(1)
    down, place = b"", 0
    while True:
        try:
            kind, content = pipe.recv()
            if kind == "down":
                down = content
                continue
            reply = _train(learner, content, down) if kind == "train" else _score(examiner, *content)
            if isinstance(reply, list) and len(reply) == 1 and slab is not None:
                reply, place = _shared(reply[0], slab, place), place + 1
            pipe.send(reply)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return


def _end_with_engine() -> None:
    """End this process when the engine's was killed: in the middle of training nobody would notice the pipe."""
    engine = multiprocessing.parent_process()
    while engine is not None and engine.pid == os.getppid():
        time.sleep(1.0)
    os._exit(1)


def _train(learner: Learner, share: list[tuple[Task, Arrays]], down: bytes) -> Any:
    """The updates of a share, or the first error, naming the client."""
    done: list[tuple[Update, Arrays]] = []
    for task, remembered in share:
        try:
            update, kept = learner(_carrying(down, task), from_arrays(remembered))
        except ProgfedError as error:
            return error
        except Exception as error:
            return RuntimeError(f"client {task.client}, round {task.round}: {type(error).__name__}: {error}")
        done.append((update, to_arrays(kept)))
    return done


def _carrying(message: bytes, task: Task) -> Task:
    """The task with another message; `replace` would take five times as long, for every client."""
    return Task(task.client, task.round, task.phase, task.lr, message, task.bits)


def _score(examiner: Examiner | None, phase: Any, arrays: dict[str, Any], starts: range) -> Any:
    assert examiner is not None
    try:
        found = examiner(phase, {name: torch.from_numpy(value) for name, value in arrays.items()}, starts)
        return {name: value.numpy() for name, value in found.items()}
    except ProgfedError as error:
        return error
    except Exception as error:
        return RuntimeError(f"evaluating stage {phase.stage}: {type(error).__name__}: {error}")


def _shared(done: tuple[Update, Arrays], slab: mmap.mmap, place: int) -> Any:
    """A large update in shared memory, and where it is; a small one as it is."""
    update, state = done
    length, room = len(update.message), len(slab) // AHEAD
    if not SMALL < length <= room:
        return [done]
    start = place % AHEAD * room
    slab[start : start + length] = update.message
    return update.client, start, length, state
