"""Training an experiment into a run directory: records, checkpoints, the final model, the summary."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

from progfed import files
from progfed.blocks import Progressive, state
from progfed.client.kernels import one_thread
from progfed.codec import schema_of
from progfed.costs import Costs
from progfed.costs.clock import Clock
from progfed.engines.local import LocalEngine
from progfed.errors import UsageError
from progfed.evaluate import Examiner, check_test
from progfed.population import FederatedData
from progfed.recipe.optimizers import evaluated
from progfed.recipe.recipe import Recipe
from progfed.runs import checkpoint
from progfed.runs.best import Best, best_record
from progfed.runs.directory import Record, RunDirectory, opened
from progfed.runs.experiment import Experiment
from progfed.runs.exported import write_exported
from progfed.runs.identity import describe, identity
from progfed.runs.progress import bar, can_show
from progfed.runs.resume import Saver, restored, resume, with_secret
from progfed.runs.snapshots import keeping
from progfed.schedule import Phase
from progfed.server.buffered import buffered
from progfed.server.loop import federate
from progfed.server.rounds import Round
from progfed.server.step import of_method, of_optimizer
from progfed.tensors import Tensors
from progfed.wire.engine import Engine


def run(
    experiment: Experiment,
    out: Path | str,
    *,
    data: Path | str = "data",
    workers: int | None = None,
    progress: bool | None = None,
) -> Record:
    """Train to the end, continuing what `out` holds of it, and return the summary.

    Args:
        experiment: What is trained.
        out: The folder of the run; it is made if need be.
        data: The folder of data sets, for an experiment that reads its data from one.
        workers: Processes that train clients; by default one for each core, and no more than a round has clients. The
            results do not depend on it.
        progress: Whether a bar is shown; by default in a terminal and in a notebook.
    """
    folder = Path(out)
    workers = workers or min(os.cpu_count() or 1, experiment.recipe.cohort)
    wanted = can_show() if progress is None else progress
    shown = bar(experiment, len(RunDirectory(folder).records())) if wanted else nullcontext(lambda record, note: None)
    with shown as show:
        for record in train(experiment, folder, data=Path(data), workers=workers):
            show(record, experiment.told(record))
    summary = RunDirectory(folder).read("summary.json")
    assert summary is not None
    return summary


class Setup(NamedTuple):
    """What training needs on whichever machine it happens, in the order in which a `Learner` takes it."""

    model: Progressive
    data: FederatedData
    recipe: Recipe
    run_id: str


def setup(experiment: Experiment, data: Path) -> Setup:
    """The set-up of an experiment whose data sets are in the folder `data`: the same on every machine."""
    return Setup(experiment.make_model(), experiment.make_data(data), experiment.recipe, identity(experiment))


def train(
    experiment: Experiment,
    out: Path,
    *,
    data: Path,
    workers: int = 1,
    device: str = "cpu",
    checkpoint_every: int | None = None,
    keep_every: int | None = None,
    engine: Callable[[], AbstractContextManager[Engine]] | None = None,
) -> Iterator[Record]:
    """Train, yielding the record of each round once it is on disk; a run that is complete yields nothing.

    A consumer that stops early (closes the generator) leaves a checkpoint of the last round behind. Checkpoints are
    made every `checkpoint_every` rounds, by default as often as costs at most 2 % of the time. Every `keep_every`-th
    model is kept for good. `engine` makes another place for clients to train than `workers` processes on this machine.
    """
    with opened(out) as directory, one_thread():
        directory.claim(describe(experiment))
        if directory.read("summary.json") is not None:
            directory.forget_secret()
            return
        model, population, recipe, run_id = setup(experiment, data)
        test = population.test_examples()
        check_test(model, recipe.schedule[0], test, experiment.judged)
        check_scores(model, experiment)
        here: Callable[[], AbstractContextManager[Engine]] = partial(
            LocalEngine,
            model,
            population,
            recipe,
            run_id=run_id,
            workers=workers,
            device=device,
            test=test,
            metric=experiment.judged,
        )
        with directory.log() as log, (engine or here)() as clients:
            start = resume(directory, run_id, clients.client_states)
            hidden = with_secret(recipe, directory)  # clients, on this machine or elsewhere, do not get it
            costs = Costs(model, recipe.method)
            together = recipe.asynchronous is None
            clock = Clock(clients, population, hidden, costs) if population.devices and together else None
            rounds = (federate if together else partial(buffered, devices=population.devices))(
                model,
                population.sizes,
                hidden,
                clock or clients,
                run_id=run_id,
                start=start,
                deepest=population.deepest,
            )
            rounds = keeping(rounds, out, keep_every)
            best = Best(directory, experiment)
            if best.given_up:
                rounds = iter(())  # all but the summary was done
            saver = Saver(directory, log, run_id, checkpoint_every, clients.client_states, best)
            examiner = clients if isinstance(clients, LocalEngine) else Examiner(model, test, experiment.judged)
            yield from recorded(rounds, experiment, examiner.measure, saver, best, costs, clock)
        finish(directory, experiment, model)
        directory.forget_secret()


def recorded(
    rounds: Iterator[Round],
    experiment: Experiment,
    measure: Callable[[Phase, Tensors], dict[str, float]],
    saver: Saver,
    best: Best,
    costs: Costs,
    clock: Clock | None = None,
) -> Iterator[Record]:
    """Evaluate, record and save each round, to the last or until the experiment's patience ends."""
    try:
        for done in rounds:
            due = done.number % experiment.evaluate_every == 0 or done.closes
            judged = evaluated(experiment.recipe.server, done.progress.params, of_optimizer(done.progress.state))
            told = experiment.recipe.method.scores(of_method(done.progress.state))
            found = None if not due else measure(done.phase, judged) if told is None else judged_by(experiment, told)
            record = _record_of(done, found, named=bool(experiment.metrics))
            if told is not None:
                record["on_clients"] = told
            record["memory_bytes"] = costs.memory(done.phase, experiment.recipe.local).peak
            if clock is not None:
                record["device_seconds"] = clock.seconds(used=done.clients, surplus=done.surplus)
            if done.device_seconds is not None:
                record["device_seconds"] = done.device_seconds
            saver.add(done, record, judged)
            yield record
            if best.given_up:
                return
    finally:
        saver.close()


def check_scores(model: Progressive, experiment: Experiment) -> None:
    """Refuse a model of which the server lacks parts that it would need to evaluate it."""
    method = experiment.recipe.method
    names = schema_of(state(model.shapes(experiment.recipe.schedule[-1])))
    private = [name for name in names if method.private(name)]
    if private and method.scores(method.init({})) is None:
        raise UsageError(
            f"the server cannot evaluate a model whose {private[0]} never leaves the clients: let them do it, with "
            f"method=OnClients({method!r:.60})"
        )


def judged_by(experiment: Experiment, told: Mapping[str, float]) -> dict[str, float]:
    """The experiment's metrics, of those that clients have measured."""
    if missing := [name for name in experiment.judged if name not in told]:
        raise UsageError(
            f"clients measure {', '.join(told) or 'nothing'}, and the experiment is judged by {missing[0]}: give "
            "OnClients the metrics of the experiment, under the same names"
        )
    return {name: told[name] for name in experiment.judged}


def _record_of(done: Round, found: dict[str, float] | None, *, named: bool) -> Record:
    """A line of `rounds.jsonl`; `surplus`, `epsilon`, what grows a stage early, and metrics by name only where there
    can be any."""
    optional = {
        "metrics": found if named else None,
        "surplus": done.surplus or None,
        "epsilon": done.epsilon,
        "signal": done.signal,
        "freed": done.freed or None,
    }
    return {
        "round": done.number,
        "stage": done.phase.stage,
        "warmup": done.phase.warmup,
        "metric": None if found is None else next(iter(found.values())),
        "loss": done.loss,
        "lr": done.lr,
        "clients": done.clients,
        "rejected": done.rejected,
        **asdict(done.cost),
        "total": asdict(done.progress.cost),
        **{name: value for name, value in optional.items() if value is not None},
    }


def finish(directory: RunDirectory, experiment: Experiment, model: Progressive) -> None:
    """Write the model and, last, the summary that marks the run as complete."""
    found = checkpoint.load(directory.checkpoints)
    assert found is not None
    trained = restored(found)[0]
    tensors = evaluated(experiment.recipe.server, trained.params, of_optimizer(trained.state))
    final = checkpoint.to_bytes(tensors)
    files.replace_file(directory.path / "model.safetensors", final)
    records, last = directory.records(), experiment.recipe.schedule[-1]
    whole = all(not experiment.recipe.method.private(name) for name in schema_of(state(model.shapes(last))))
    if model.origin and last.stage == model.stages and whole:
        write_exported(directory.path, model, tensors)
    closing, best = records[-1], best_record(records, experiment)
    assert best is not None  # the last round of a phase is always evaluated
    timed = [record["device_seconds"] for record in records if "device_seconds" in record]
    directory.write(
        "summary.json",
        {
            "experiment": experiment.name,
            "run": experiment.run,
            "baseline": experiment.baseline,
            "seed": experiment.recipe.seed,
            "rounds": len(records),
            "metric": closing["metric"],
            "metrics": closing.get("metrics") or dict.fromkeys(experiment.judged, closing["metric"]),
            "best_metric": best["metric"],
            "best_round": best["round"],
            "cost": found.state["cost"],
            "memory_bytes": max((record.get("memory_bytes", 0) for record in records), default=0),
            # as `progfed plan` counts them: what an optimizer may change, without buffers such as BatchNorm's
            "parameters": sum(parameter.numel() for parameter in model.shapes(last).parameters()),
            "model_sha256": hashlib.sha256(final).hexdigest(),
            **({"device_seconds": sum(timed)} if timed else {}),
        },
    )
