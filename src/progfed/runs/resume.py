"""Saving a run as it goes, and going on where it was saved."""

from __future__ import annotations

import time
from dataclasses import asdict, astuple, replace

import torch

from progfed.costs.phase import Cost
from progfed.errors import StorageError, UsageError
from progfed.recipe import optimizers
from progfed.recipe.buffered import Aloft, Flight
from progfed.recipe.growth import Watch
from progfed.recipe.privacy import new_secret
from progfed.recipe.recipe import Recipe
from progfed.runs import checkpoint
from progfed.runs.best import Best
from progfed.runs.checkpoint import Checkpoint
from progfed.runs.directory import Log, Record, RunDirectory
from progfed.server.rounds import Progress, Round
from progfed.tensors import Tensors, grouped, prefixed
from progfed.wire.engine import ClientState
from progfed.wire.message import model_digest
from progfed.wire.state import from_tables, to_tables

SHARE = 50
"""A checkpoint is due when this many times the cost of the last one has passed: at most 2 % of the time."""


class Saver:
    """Writes a line per round, and a checkpoint whenever one is due."""

    def __init__(
        self,
        directory: RunDirectory,
        log: Log,
        run_id: str,
        every: int | None,
        states: dict[int, ClientState],
        best: Best,
    ) -> None:
        self._directory, self._log, self._run_id, self._every, self._states = directory, log, run_id, every, states
        self._best = best
        self._unsaved: Progress | None = None
        self._cost, self._last = 0.0, time.perf_counter()

    def add(self, done: Round, record: Record, judged: Tensors) -> None:
        """Write down a round; `judged` are the tensors that its metric is of."""
        self._log.append(record)
        self._best.see(record, judged)
        self._unsaved = done.progress
        if self._every:
            due = done.number % self._every == 0
        else:
            due = time.perf_counter() - self._last >= SHARE * self._cost
        if due:
            self.close()

    def close(self) -> None:
        """Save the last round, if it is not saved yet."""
        if self._unsaved is None:
            return
        began = time.perf_counter()
        self._log.sync()
        self._best.save()
        checkpoint.save(self._directory.checkpoints, _to_checkpoint(self._unsaved, self._run_id, self._states))
        self._unsaved = None
        self._last = time.perf_counter()
        self._cost = self._last - began


def _to_checkpoint(progress: Progress, run_id: str, states: dict[int, ClientState]) -> Checkpoint:
    """Progress as files; the server's slots and the clients' numbers become name prefixes.

    Of the models that clients hold only the server's copy is stored, with the list of those who hold it: whoever holds
    another one would ask for a whole model anyway.
    """
    current = model_digest(progress.held)
    state = {
        "experiment": run_id,
        "cost": asdict(progress.cost),
        "slots": sorted(progress.state),
        "holders": [
            client
            for client, kept in sorted(states.items())
            if "held" in kept and model_digest(kept["held"]) == current
        ],
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }
    tensors = {"model": progress.params, "server": prefixed(progress.state), "held": progress.held}
    tensors |= to_tables(states)
    watch = progress.watch
    if watch.lengths or watch.signal or watch.drift or watch.path:
        state["growth"] = {"lengths": watch.lengths, "signal": watch.signal, "path": watch.path}
        tensors["drift"] = watch.drift
    if progress.aloft != Aloft():
        state["aloft"] = {"now": progress.aloft.now, "flights": [astuple(one) for one in progress.aloft.flights]}
        tensors["aloft"] = prefixed(progress.aloft.models)
    return Checkpoint(progress.round, tensors, state)


def resume(directory: RunDirectory, run_id: str, states: dict[int, ClientState]) -> Progress | None:
    """Where to go on: the newest valid checkpoint. Records are cut back to it; `states` get what it has of clients."""
    found = checkpoint.load(directory.checkpoints)
    directory.cut(found.round if found else 0)
    if found is None:
        return None
    try:
        _check_setup(found, directory, run_id)
        progress, known = restored(found)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(
            f"{directory.checkpoints} has a state.json that does not fit its tensors "
            f"({type(error).__name__}: {error}): start over with --fresh"
        ) from error
    for client, state in known.items():
        states.setdefault(client, {}).update(state)
    return progress


def _check_setup(found: Checkpoint, directory: RunDirectory, run_id: str) -> None:
    """Refuse a checkpoint of another experiment or set-up, or of numbers that no model has."""
    for key, now in (("experiment", run_id), ("torch", torch.__version__), ("threads", torch.get_num_threads())):
        if found.state[key] != now:
            raise StorageError(
                f"{directory.path} was begun with {key} {found.state[key]}, now it is {now}: the numbers would differ; "
                "continue in the same set-up, or start over with --fresh"
            )
    for name, value in sorted(found.tensors["model"].items()):
        if not value.is_floating_point():
            raise StorageError(
                f"{directory.checkpoints} has whole numbers ({value.dtype}) as {name}, which no model is trained in: "
                "start over with --fresh"
            )


def restored(found: Checkpoint) -> tuple[Progress, dict[int, ClientState]]:
    """Progress, and what clients remember, as `_to_checkpoint` stored them."""
    empty: optimizers.State = {slot: {} for slot in found.state["slots"]}
    state = empty | grouped(found.tensors["server"])
    held = found.tensors["held"]
    states: dict[int, ClientState] = {int(client): {"held": held} for client in found.state["holders"]}
    for client, kept in from_tables(found.tensors).items():
        states.setdefault(client, {}).update(kept)
    cost = Cost(**found.state["cost"])
    done = Progress(int(found.round), found.tensors["model"], state, held, cost, watched(found), out(found))
    return done, states


def with_secret(recipe: Recipe, directory: RunDirectory) -> Recipe:
    """The recipe with the secret that this run draws its noise from, where it promises privacy.

    That is the one in the run's folder; before a round is finished the given one, or a new one, is put there.
    """
    if recipe.privacy is None:
        return recipe
    given, kept = recipe.privacy.secret, directory.secret()
    if not directory.records():
        kept = given or new_secret()
        directory.keep_secret(kept)
    if kept is None:
        raise StorageError(
            f"{directory.path} has lost its privacy.secret, without which its noise and cohorts would be others: "
            "put it back, or start over with --fresh"
        )
    if given and given != kept:
        raise StorageError(
            f"{directory.path} was begun with another privacy secret: give that one or none, or start over with --fresh"
        )
    try:
        return replace(recipe, privacy=replace(recipe.privacy, secret=kept))
    except UsageError as error:
        raise StorageError(f"{directory.path} has a damaged privacy.secret: start over with --fresh") from error


def out(found: Checkpoint) -> Aloft:
    """Who was out, and with which models; nobody in a checkpoint of a run whose rounds are synchronous."""
    told = found.state.get("aloft")
    if told is None:
        return Aloft()
    models = {int(version): model for version, model in grouped(found.tensors["aloft"]).items()}
    return Aloft(told["now"], tuple(Flight(*one) for one in told["flights"]), models)


def watched(found: Checkpoint) -> Watch:
    """What decides about growth; nothing in a checkpoint of a run that grows when its schedule says."""
    told = found.state.get("growth")
    if told is None:
        return Watch()
    return Watch(tuple(told["lengths"]), tuple(told["signal"]), found.tensors["drift"], told["path"])
