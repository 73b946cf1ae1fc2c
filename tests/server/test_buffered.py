"""Asynchronous rounds: whose updates come first is told by their devices, and a full buffer of all is FedAvg."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch

from progfed import Buffered, Device, LocalEngine, Scaffold, federate
from progfed.errors import UsageError
from progfed.population import FederatedData
from progfed.recipe.buffered import Aloft, Flight
from progfed.runs.plan import plan
from progfed.runs.train import run, train
from progfed.schedule import end_to_end
from progfed.server.buffered import buffered
from progfed.server.rounds import Round
from progfed.wire.engine import Engine, Task, Update
from tiny import tiny_data, tiny_experiment, tiny_model, tiny_recipe

SLOW, FAST = Device(down="8kbit", up="8kbit", flops="1MFLOPS"), Device(down="80kbit", up="80kbit", flops="10MFLOPS")


def data(*devices: Device) -> FederatedData:
    made = tiny_data()
    return FederatedData(made.sizes, made.load, made.test, classes=3, devices=devices or (FAST, SLOW) * 3)


def rounds(population: FederatedData, **changes: object) -> list[Round]:
    recipe = tiny_recipe(**{"asynchronous": Buffered(2), **changes})
    with LocalEngine(tiny_model(), population, recipe) as engine:
        return list(buffered(tiny_model(), population.sizes, recipe, engine, devices=population.devices))


def test_a_buffer_for_the_whole_cohort_gives_the_bits_and_bytes_of_synchronous_rounds() -> None:
    done = rounds(data(), asynchronous=Buffered(3))
    recipe = tiny_recipe()
    with LocalEngine(tiny_model(), data(), recipe) as engine:
        together = list(federate(tiny_model(), data().sizes, recipe, engine))
    for one, other in zip(done, together, strict=True):
        assert all(torch.equal(value, other.progress.params[name]) for name, value in one.progress.params.items())
        assert (one.loss, one.cost.down_bytes, one.cost.up_bytes, one.cost.flops, one.cost.paper_bytes) == (
            other.loss,
            other.cost.down_bytes,
            other.cost.up_bytes,
            other.cost.flops,
            other.cost.paper_bytes,
        )


def test_the_clock_shows_when_the_last_of_a_buffer_came_back_and_the_slow_are_late_with_an_old_model() -> None:
    population = data()
    seen: list[list[Task]] = []

    class Watched:
        def __init__(self, engine: Engine) -> None:
            self._engine, self.client_states = engine, engine.client_states

        def __call__(self, tasks: list[Task]) -> list[Update]:
            seen.append(list(tasks))
            return list(self._engine(tasks))

    recipe = tiny_recipe(asynchronous=Buffered(1), cohort=4, schedule=end_to_end(12, stages=3))
    with LocalEngine(tiny_model(), population, recipe) as engine:
        done = list(
            buffered(tiny_model(), population.sizes, recipe, Watched(engine), devices=population.devices)  # type: ignore[arg-type]
        )
    assert all(len(tasks) == 1 for tasks in seen)
    out: dict[int, tuple[float, int]] = {}
    now, flops = 0.0, done[0].cost.flops // recipe.local.seen(population.sizes[seen[0][0].client])
    for number, (tasks, one) in enumerate(zip(seen, done, strict=True), start=1):
        busy = sorted(out)
        for client in recipe.idle(busy, population.clients, number):
            down, up = len(tasks[0].message), done[0].cost.up_bytes
            work = flops * recipe.local.seen(population.sizes[client])
            out[client] = now + population.devices[client].seconds(down=down, up=up, flops=work), number
        client = min(out, key=lambda one: (out[one][0], one))
        ends, version = out.pop(client)
        assert (tasks[0].client, tasks[0].round) == (client, version)
        assert one.device_seconds == pytest.approx(ends - now)
        now = ends
    lags = [number - tasks[0].round for number, tasks in enumerate(seen, start=1)]
    assert max(lags) > 2


def test_an_update_counts_by_the_age_of_its_model() -> None:
    recipe = tiny_recipe(asynchronous=Buffered(1, power=1.0), cohort=2, schedule=end_to_end(4, stages=3))
    moved = []
    for power in (0.0, 1.0):
        wanted = replace(recipe, asynchronous=Buffered(1, power=power))
        population = data(*[FAST] * 6)
        with LocalEngine(tiny_model(), population, wanted) as engine:
            going = buffered(tiny_model(), population.sizes, wanted, engine, devices=population.devices)
            one, two = islice(going, 2)
            going.close()
        assert [flight.version for flight in two.progress.aloft.flights] == [2]  # who came back had left in round 1
        moved.append({name: two.progress.params[name] - value for name, value in one.progress.params.items()})
    for name, value in moved[1].items():
        torch.testing.assert_close(value, moved[0][name] / 2, rtol=1e-4, atol=1e-6)


def test_workers_and_interruptions_change_no_bit_and_every_byte_is_planned(tmp_path: Path) -> None:
    experiment = tiny_experiment(data=data(), recipe=tiny_recipe(asynchronous=Buffered(2), method=Scaffold()))
    whole = run(experiment, tmp_path / "whole", workers=2)
    part = train(experiment, tmp_path / "part", data=tmp_path)
    list(islice(part, 5))
    part.close()
    again = run(experiment, tmp_path / "part", workers=1)
    assert (again["model_sha256"], again["device_seconds"]) == (whole["model_sha256"], whole["device_seconds"])
    assert [again["cost"][key] for key in ("down_bytes", "up_bytes")] == [
        whole["cost"][key] for key in ("down_bytes", "up_bytes")
    ]
    planned = plan(experiment)["total"]
    assert (planned["down_bytes"], planned["up_bytes"]) == (whole["cost"]["down_bytes"], whole["cost"]["up_bytes"])
    assert planned["paper_bytes"] == whole["cost"]["paper_bytes"]


def test_who_comes_back_is_landed_and_the_models_that_nobody_trains_are_dropped() -> None:
    flights = (Flight(4, 1, 3.0), Flight(2, 2, 1.0), Flight(7, 2, 1.0), Flight(1, 2, 9.0))
    aloft = Aloft(0.5, flights, {1: {}, 2: {}})
    back = aloft.first(3)
    assert [flight.client for flight in back] == [4, 2, 7]
    assert aloft.landed(back) == Aloft(3.0, (Flight(1, 2, 9.0),), {2: {}})
    assert aloft.clients == [1, 2, 4, 7]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"asynchronous": Buffered(4)}, "a buffer of 4 updates needs a cohort of 4"),
        ({"delta": True}, "without privacy, delta"),
        ({"over_selection": 1.5}, "without privacy, delta"),
    ],
)
def test_what_needs_common_rounds_is_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        tiny_recipe(**{"asynchronous": Buffered(2), **changes})


def test_without_devices_nobody_knows_who_is_first() -> None:
    with pytest.raises(UsageError, match="a device for each client"):
        rounds(tiny_data())
    recipe = tiny_recipe(asynchronous=Buffered(2))
    with LocalEngine(tiny_model(), data(), recipe) as engine, pytest.raises(UsageError, match="synchronous loop"):
        next(federate(tiny_model(), data().sizes, recipe, engine))
