"""The local engine: the same bits whatever the number of workers, in order, with flat memory, and honest errors."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import nn

from conftest import tiny_data, tiny_model, tiny_recipe
from progfed import rng
from progfed.blocks import Progressive
from progfed.costs import Costs
from progfed.data.synthetic import classification
from progfed.engines.local import LocalEngine
from progfed.engines.worker import AHEAD, SMALL
from progfed.errors import DataError, TrainingError, UsageError
from progfed.evaluate import Examiner, accuracy, evaluate
from progfed.population import Examples, FederatedData
from progfed.recipe.rate import Constant
from progfed.recipe.recipe import Local, Recipe
from progfed.schedule import Phase, end_to_end
from progfed.server.loop import Round, federate
from progfed.wire.engine import Update


def images(*, clients: int = 9) -> FederatedData:
    """Clients of 3, 4, 5, … grey images: every worker gets shares of another size."""
    draw = rng.generator(1, "images")
    made = [Examples(torch.randn(3 + i, 1, 12, 12, generator=draw), torch.arange(3 + i) % 4) for i in range(clients)]
    return FederatedData([one.number for one in made], lambda index: made[index], lambda: made[-1], classes=4)


def convnet() -> Progressive:
    """Convolution, pooling and dropout, with an update too large for the pipe."""
    return Progressive(
        blocks=(
            lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(200, 64), nn.ReLU(), nn.Dropout(0.1)),
        ),
        heads=(lambda: nn.Sequential(nn.Flatten(), nn.Linear(200, 4)), lambda: nn.Linear(64, 4)),
        example=torch.zeros(1, 1, 12, 12),
        name="convnet",
    )


def recipe(**changes: object) -> Recipe:
    settings: dict[str, object] = {
        "schedule": (Phase(1, 2), Phase(2, 2)),
        "cohort": 7,
        "rate": Constant(0.1),
        "local": Local(epochs=2, batch=2, momentum=0.9, weight_decay=1e-3),
    }
    return Recipe(**{**settings, **changes})  # type: ignore[arg-type]


def rounds(workers: int, **changes: object) -> list[Round]:
    model, data, plan = convnet(), images(), recipe(**changes)
    with LocalEngine(model, data, plan, workers=workers) as engine:
        return list(federate(model, data.sizes, plan, engine))


def bits(done: Sequence[Round]) -> list[object]:
    return [
        (r.loss, r.clients, r.cost.up_bytes, {name: value.tolist() for name, value in r.progress.params.items()})
        for r in done
    ]


def test_the_bits_do_not_depend_on_the_number_of_workers() -> None:
    one = bits(rounds(1))
    assert bits(rounds(2)) == one
    assert bits(rounds(3)) == one


def test_the_updates_of_this_test_are_large_enough_to_cross_in_shared_memory() -> None:
    assert Costs(convnet()).longest_update(recipe()) > SMALL


def test_small_updates_in_shares_of_many_give_the_same_bits() -> None:
    model, data = tiny_model(), classification(300, shape=(6,), classes=3, per_client=(2, 9))
    plan = tiny_recipe(schedule=end_to_end(2, stages=3), cohort=200)
    found = []
    for workers in (1, 2):
        with LocalEngine(model, data, plan, workers=workers) as engine:
            found.append(bits(list(federate(model, data.sizes, plan, engine))))
    assert found[0] == found[1]


def test_updates_come_nearly_in_the_order_of_the_cohort() -> None:
    model, data = convnet(), images(clients=40)
    plan = recipe(schedule=end_to_end(1, stages=2), cohort=40)
    early: list[int] = []

    class Watched:
        def __init__(self, engine: LocalEngine) -> None:
            self._engine, self.client_states = engine, engine.client_states

        def __call__(self, tasks: Sequence[object]) -> list[Update]:
            updates = list(self._engine(tasks))  # type: ignore[arg-type]
            waiting, turn = set(), 0
            for update in updates:
                waiting.add(update.client)
                while turn in waiting:
                    waiting.remove(turn)
                    turn += 1
                early.append(len(waiting))
            return updates

    with LocalEngine(model, data, plan, workers=2) as engine:
        list(federate(model, data.sizes, plan, Watched(engine)))
    assert len(early) == 40
    assert max(early) <= 4 * 2 + AHEAD * 2


@pytest.mark.parametrize("workers", [1, 2])
def test_a_client_that_fails_is_named(workers: int) -> None:
    def load(index: int) -> Examples:
        if index == 3:
            raise OSError("the disk is gone")
        return images().load(index)

    data = FederatedData(images().sizes, load, images().test, classes=4)
    plan = recipe(cohort=9)
    with (
        LocalEngine(convnet(), data, plan, workers=workers) as engine,
        pytest.raises((RuntimeError, OSError), match=r"the disk is gone") as failure,
    ):
        list(federate(convnet(), data.sizes, plan, engine))
    assert workers == 1 or "client 3, round 1: OSError" in str(failure.value)


def test_a_mistake_in_the_data_keeps_its_own_kind_of_error() -> None:
    data = FederatedData(images().sizes, lambda index: images().load(0), images().test, name="grey")
    plan = recipe(cohort=9)
    with (
        LocalEngine(convnet(), data, plan, workers=2) as engine,
        pytest.raises(DataError, match=r"grey: client \d was declared with \d+ examples"),
    ):
        list(federate(convnet(), data.sizes, plan, engine))


def test_a_worker_that_is_killed_stops_training_with_advice() -> None:
    model, data, plan = convnet(), images(), recipe(schedule=end_to_end(50, stages=2))
    with LocalEngine(model, data, plan, workers=2) as engine:
        going = federate(model, data.sizes, plan, engine)
        next(going)
        os.kill(next(iter(engine._lines.values())).process.pid, signal.SIGKILL)
        with pytest.raises(TrainingError, match=r"a worker process has ended.*continue from the checkpoint"):
            next(going)


def test_a_round_that_was_given_up_does_not_spoil_the_next() -> None:
    model, data, plan = convnet(), images(), recipe(schedule=end_to_end(1, stages=2))
    expected = bits(rounds(1, schedule=end_to_end(1, stages=2)))
    with LocalEngine(model, data, plan, workers=2) as engine:

        class Impatient:
            client_states = engine.client_states

            def __call__(self, tasks: Sequence[object]) -> list[Update]:
                return [next(iter(engine(tasks)))]  # type: ignore[arg-type]

        list(federate(model, data.sizes, plan, Impatient()))
        assert bits(list(federate(model, data.sizes, plan, engine))) == expected


def test_workers_end_and_leave_no_open_file_behind() -> None:
    rounds(2)  # what is opened once, by the first engine of a process
    before = len(os.listdir("/proc/self/fd"))
    model, data, plan = convnet(), images(), recipe()
    with LocalEngine(model, data, plan, workers=2) as engine:
        list(federate(model, data.sizes, plan, engine))
        workers = [line.process.pid for line in engine._lines.values()]
    assert len(os.listdir("/proc/self/fd")) == before
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


@pytest.mark.parametrize("free", [8, 44], ids=["for few workers", "for all workers, and none for a checkpoint"])
def test_more_workers_than_files_can_be_opened_for_are_refused_and_none_is_left(free: int) -> None:
    before = {int(name) for name in os.listdir("/proc/self/fd")}
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = next(n for n in range(limits[0]) if n - len(before & set(range(n))) == free)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        with pytest.raises(UsageError, match=r"16 workers cannot be started \(Too many open files\): take fewer with"):
            LocalEngine(convnet(), images(), recipe(), workers=16)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert multiprocessing.active_children() == []
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_many_rounds_leak_neither_files_nor_memory() -> None:
    model, data = tiny_model(), tiny_data()
    plan = tiny_recipe(schedule=end_to_end(300, stages=3), cohort=2)

    def held() -> tuple[int, int]:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return len(os.listdir("/proc/self/fd")), pages * os.sysconf("SC_PAGE_SIZE") // 2**20

    seen = []
    with LocalEngine(model, data, plan, workers=2) as engine:
        for done in federate(model, data.sizes, plan, engine):
            if done.number in (100, 300):
                seen.append(held())
    assert seen[1][0] == seen[0][0]
    assert seen[1][1] - seen[0][1] <= 2


def test_a_million_clients_are_drawn_from_without_being_looked_at() -> None:
    looked: list[int] = []
    inner = classification(1_000_000, shape=(6,), classes=3, per_client=5)

    def load(index: int) -> Examples:
        looked.append(index)
        return inner.load(index)

    data = FederatedData(inner.sizes, load, inner.test, classes=3)
    plan = tiny_recipe(schedule=end_to_end(2, stages=3), cohort=20)
    with LocalEngine(tiny_model(), data, plan) as engine:
        done = list(federate(tiny_model(), data.sizes, plan, engine))
    assert [r.clients for r in done] == [20, 20]
    assert len(looked) == 40


# --- evaluation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_evaluating_in_workers_gives_the_bits_of_evaluating_at_once(workers: int) -> None:
    model, data, phase = convnet(), images(), Phase(2, 1)
    draw = rng.generator(2, "test")
    test = Examples(torch.randn(1130, 1, 12, 12, generator=draw), torch.randint(4, (1130,), generator=draw))
    params = {name: value for part in model.parts(phase) for name, value in model.init(part, seed=5).items()}
    with LocalEngine(model, data, recipe(), workers=workers, test=test) as engine:
        found = [engine.evaluate(phase, params) for _ in range(2)]
    assert found == [evaluate(model.at(2, params).to(memory_format=torch.channels_last), test)] * 2  # type: ignore[call-overload]


@pytest.mark.parametrize(("number", "workers"), [(1, 1), (1, 4), (250, 2), (251, 2), (1130, 3), (5000, 7)])
def test_shares_of_the_test_set_join_to_the_whole(number: int, workers: int) -> None:
    examiner = Examiner(convnet(), Examples(torch.zeros(number, 1, 12, 12), torch.zeros(number)), accuracy)
    starts = [start for share in examiner.shares(Phase(2, 1), workers) for start in share]
    assert starts == list(range(0, number, 250))


def test_an_engine_without_a_test_set_says_so() -> None:
    with LocalEngine(convnet(), images(), recipe()) as engine, pytest.raises(UsageError, match="without a test set"):
        engine.evaluate(Phase(1, 1), {})


def test_the_metric_is_the_one_that_was_asked_for() -> None:
    model, phase = convnet(), Phase(2, 1)
    test = images().test_examples()
    params = {name: value for part in model.parts(phase) for name, value in model.init(part, seed=5).items()}
    with LocalEngine(
        model, images(), recipe(), workers=2, test=test, metric=lambda o, t: accuracy(o, t) * 0 + 0.5
    ) as engine:
        assert engine.evaluate(phase, params) == 50


# --- devices --------------------------------------------------------------------------------------------------------


def test_a_machine_without_cuda_says_so() -> None:
    if torch.cuda.device_count():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(UsageError, match=r"no CUDA device is to be seen here: leave out --device"):
        LocalEngine(convnet(), images(), recipe(), device="cuda")


def test_a_device_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UsageError, match="a device is 'cpu' or 'cuda', not 'tpu'"):
        LocalEngine(convnet(), images(), recipe(), device="tpu")
