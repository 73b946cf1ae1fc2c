"""Weak devices: each trains the largest sub-model that it can, and each name is averaged over those who trained it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load
from torch import nn

from flower.flower_grid import MemoryGrid
from progfed.blocks import Progressive
from progfed.client.learner import Learner
from progfed.codec import Float, codec, schema_of
from progfed.costs.phase import phase_cost
from progfed.engines.local import LocalEngine
from progfed.errors import DataError, UsageError
from progfed.flower.grid import GridEngine, Patience
from progfed.flower.node import client_app
from progfed.losses import Distil
from progfed.population import FederatedData, from_clients
from progfed.recipe.aggregate import Clipped, Mean, Median, Trimmed
from progfed.recipe.growth import Plateau
from progfed.recipe.optimizers import fedadam
from progfed.recipe.privacy import Privacy
from progfed.recipe.recipe import Local, Recipe
from progfed.runs.directory import RunDirectory
from progfed.runs.identity import identity
from progfed.runs.plan import plan
from progfed.runs.train import Setup, run, train
from progfed.schedule import Phase, end_to_end, every_head, in_turns, mixed, partial, progressive, within
from progfed.server.loop import Round, federate
from progfed.tensors import Tensors, of_parts, part
from progfed.wire.engine import ClientState, Task, Update
from progfed.wire.message import DOWN, UP, Envelope, seal, unseal
from tiny import tiny_data, tiny_experiment, tiny_model, tiny_recipe

RUN = "0" * 16
DEPTHS = (1, 3, 2, 1, 3, 3)
IN_TURNS = in_turns((*progressive(5, stages=3, lengths=(1, 2, 2)), *every_head(1, stages=3)))
KEEPS = Local(epochs=2, batch=4, momentum=0.9, keep_momentum=True, between=Distil())
PRIVACY = Privacy(clip=1.0, noise=1.0, secret="9c1f83e07a4b5d6210c4e8f7b3a29d51")


def weak_data(deepest: Sequence[int] = DEPTHS) -> FederatedData:
    return replace(tiny_data(), deepest=deepest)


def rounds(recipe: Recipe, *, deepest: Sequence[int] = DEPTHS, workers: int = 1) -> list[Round]:
    model, data = tiny_model(), weak_data(deepest)
    with LocalEngine(model, data, recipe, workers=workers) as engine:
        return list(federate(model, data.sizes, recipe, engine, deepest=data.deepest))


def same(left: Tensors, right: Tensors) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def told(done: Sequence[Round]) -> list[Any]:
    return [(r.number, r.loss, r.clients, r.rejected, r.surplus, replace(r.cost, seconds=0)) for r in done]


def parts_of(done: Round) -> set[str]:
    return {part(name) for name in done.progress.params}


class Seen:
    """An engine that keeps the tasks and the updates that cross."""

    def __init__(self, recipe: Recipe, data: FederatedData) -> None:
        self.client_states: dict[int, ClientState] = {}
        self._learner = Learner(tiny_model(), data, recipe, RUN)
        self.tasks: list[Task] = []
        self.updates: list[Update] = []

    def __call__(self, tasks: Sequence[Task]) -> Iterable[Update]:
        for task in tasks:
            update, self.client_states[task.client] = self._learner(task, self.client_states.get(task.client, {}))
            self.tasks.append(task)
            self.updates.append(update)
            yield update


def seen(recipe: Recipe, deepest: Sequence[int]) -> tuple[Seen, list[Round]]:
    data = weak_data(deepest)
    engine = Seen(recipe, data)
    return engine, list(federate(tiny_model(), data.sizes, recipe, engine, deepest=deepest))


# --- what a weak client trains --------------------------------------------------------------------------------------


def test_a_client_trains_the_largest_sub_model_that_fits_with_its_own_head() -> None:
    assert within(Phase(2, 5), 2) == within(Phase(2, 5), 7) == Phase(2, 5)
    assert within(Phase(3, 5), 1) == Phase(1, 5)
    assert within(mixed(6, stages=3)[0], 2) == Phase(2, 1, trains=(1,))
    assert within(partial(6, stages=3)[1], 1) == Phase(1, 1, trains=(1,))


def test_where_all_heads_learn_a_client_trains_those_up_to_its_own() -> None:
    phase = every_head(5, stages=4)[0]
    assert [within(phase, depth).used_heads for depth in (1, 2, 3, 4)] == [(1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)]
    assert within(phase, 1) == Phase(1, 5)


def test_in_the_warm_up_of_a_deeper_block_a_client_trains_its_own_last_block() -> None:
    assert within(Phase(3, 2, trains=(3,), warmup=True), 2) == Phase(2, 2, trains=(2,), warmup=True)


VALUES: list[tuple[float, Tensors]] = [
    (1, {"E1.w": torch.tensor([1.0, 0.0]), "G1.w": torch.tensor([8.0, 8.0])}),
    (1, {"E1.w": torch.tensor([2.0, 0.0]), "E2.w": torch.tensor([5.0, 1.0])}),
    (2, {"E1.w": torch.tensor([6.0, 4.0]), "E2.w": torch.tensor([8.0, 4.0])}),
]


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        (Mean(), {"E1.w": [3.75, 2.0], "G1.w": [8.0, 8.0], "E2.w": [7.0, 3.0]}),
        (Median(), {"E1.w": [2.0, 0.0], "G1.w": [8.0, 8.0], "E2.w": [6.5, 2.5]}),
        (Trimmed(0.34), {"E1.w": [2.0, 0.0], "G1.w": [8.0, 8.0], "E2.w": [6.5, 2.5]}),
        (Clipped(1e6), {"E1.w": [3.75, 2.0], "G1.w": [8.0, 8.0], "E2.w": [7.0, 3.0]}),
    ],
    ids=["mean", "median", "trimmed", "clipped"],
)
def test_every_aggregate_takes_a_name_over_those_who_trained_it(aggregate: Any, expected: dict[str, Any]) -> None:
    assert {name: value.tolist() for name, value in aggregate(VALUES).items()} == expected


def alone(recipe: Recipe, client: int, depth: int, start: Tensors) -> Tensors:
    """What one client changes in M^depth, by the parts below the loop."""
    phase = Phase(depth, 1)
    held = of_parts(start, tiny_model().parts(phase))
    message = seal(Envelope(DOWN, RUN, 1, depth), held, Float(), 0)
    update, _ = Learner(tiny_model(), tiny_data(), recipe, RUN)(Task(client, 1, phase, 0.2, message), {})
    expected = Envelope(UP, RUN, 1, depth, client, tiny_data().sizes[client])
    return unseal(update.message, expected, schema_of(held), Float())[1]


def test_a_round_is_the_mean_by_name_of_what_each_client_changed_in_its_own_sub_model() -> None:
    recipe, sizes = tiny_recipe(schedule=end_to_end(1, stages=3), cohort=6), tiny_data().sizes
    (done,) = rounds(recipe)
    start = {k: v for p in ("E1", "E2", "E3", "G1", "G2", "G3") for k, v in tiny_model().init(p, seed=3).items()}
    changes = [alone(recipe, client, depth, start) for client, depth in enumerate(DEPTHS)]
    assert done.progress.params.keys() == start.keys()
    for name, value in done.progress.params.items():
        who = [client for client, change in enumerate(changes) if name in change]
        total = sum(sizes[client] * changes[client][name].double() for client in who)
        mean = total / sum(sizes[client] for client in who)
        torch.testing.assert_close(value.double(), start[name] + mean, rtol=1e-5, atol=1e-6)


# --- growth and costs -----------------------------------------------------------------------------------------------


def test_the_heads_that_weak_clients_need_outlive_a_growth_and_go_on_learning() -> None:
    done = rounds(tiny_recipe(schedule=progressive(9, stages=3, lengths=(2, 2, 5)), cohort=6))
    assert [parts_of(done[i]) for i in (0, 2, 4)] == [
        {"E1", "G1"},
        {"E1", "E2", "G1", "G2"},
        {"E1", "E2", "E3", "G1", "G2", "G3"},
    ]
    for head in ("G1.weight", "G2.weight"):
        values = [r.progress.params[head] for r in done[4:]]
        assert all(not torch.equal(before, after) for before, after in pairwise(values))


def test_a_head_that_all_stages_share_learns_from_clients_of_every_depth() -> None:
    model = Progressive(
        blocks=(lambda: nn.Linear(6, 5), lambda: nn.Linear(5, 5)),
        heads=(lambda: nn.Linear(5, 3), lambda: nn.Linear(5, 3)),
        example=torch.zeros(1, 6),
        keep_head=True,
    )
    recipe = tiny_recipe(schedule=progressive(4, stages=2), cohort=6)
    engine = LocalEngine(model, tiny_data(), recipe)
    done = list(federate(model, tiny_data().sizes, recipe, engine, deepest=(1, 2, 2, 1, 2, 2)))
    assert [parts_of(r) for r in done] == [{"E1", "G"}, *[{"E1", "E2", "G"}] * 3]
    assert {r.clients for r in done} == {6}


def test_heads_that_nobody_needs_are_discarded_as_before() -> None:
    done = rounds(tiny_recipe(schedule=progressive(6, stages=3, overlap=0)), deepest=(2, 3, 3, 3, 3, 2))
    assert parts_of(done[1]) == {"E1", "E2", "G2"}
    assert parts_of(done[-1]) == {"E1", "E2", "E3", "G2", "G3"}


def test_in_a_warm_up_only_last_blocks_and_heads_change() -> None:
    done = rounds(tiny_recipe(schedule=progressive(6, stages=3, warmup=1), cohort=6), deepest=(2, 3, 3, 3, 3, 2))
    (before, after) = next((a, b) for a, b in pairwise(done) if b.phase.warmup and b.phase.stage == 3)
    changed = {
        part(name)
        for name, value in after.progress.params.items()
        if name not in before.progress.params or not torch.equal(value, before.progress.params[name])
    }
    assert changed == {"E2", "G2", "E3", "G3"}


def test_counted_bytes_are_those_that_crossed_one_message_for_each_stage() -> None:
    recipe = tiny_recipe(schedule=progressive(6, stages=3), cohort=4, over_selection=1.5, up=codec("LQ-8"))
    engine, done = seen(recipe, DEPTHS)
    for r in done:
        tasks = [task for task in engine.tasks if task.round == r.number]
        assert r.cost.down_bytes == sum(len(task.message) for task in tasks)
        depths = {min(DEPTHS[task.client], r.phase.stage) for task in tasks}
        assert len({id(task.message) for task in tasks}) == len(depths)
        assert {task.phase.stage for task in tasks} == depths
    assert sum(r.cost.up_bytes for r in done) == sum(len(update.message) for update in engine.updates)
    assert {r.clients for r in done} == {4}
    assert {r.surplus for r in done} == {2}


def test_flops_and_published_bytes_are_the_sum_over_what_each_client_trained() -> None:
    recipe = tiny_recipe(schedule=end_to_end(2, stages=3), cohort=6)
    costs = [phase_cost(tiny_model(), Phase(depth, 1)) for depth in DEPTHS]
    for r in rounds(recipe):
        assert r.cost.flops == 2 * sum(c.flops * n for c, n in zip(costs, tiny_data().sizes, strict=True))
        assert r.cost.paper_bytes == 4 * sum(c.trained_parameters for c in costs)


def test_a_plan_is_the_cost_of_a_cohort_of_all_and_the_average_of_smaller_ones(tmp_path: Path) -> None:
    experiment = tiny_experiment(data=weak_data(), recipe=tiny_recipe(cohort=6), clients=6, examples=45)
    planned, counted = plan(experiment), run(experiment, tmp_path)["cost"]
    for cost in ("down_bytes", "up_bytes", "paper_bytes"):
        assert planned["total"][cost] == counted[cost]
    assert planned["expected"]
    assert not planned["exact"]
    half = plan(replace(experiment, recipe=tiny_recipe(cohort=3)))
    assert half["total"]["up_bytes"] == pytest.approx(planned["total"]["up_bytes"] / 2, abs=len(planned["stages"]) * 2)
    assert plan(replace(experiment, data=weak_data((3,) * 6))) == plan(replace(experiment, data=tiny_data()))


# --- the same bits, whatever runs it --------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"server": fedadam(), "up": codec("LQ-8"), "down": codec("LQ-8")}])
def test_where_everybody_is_strong_bits_and_messages_are_those_without_depths(changes: dict[str, Any]) -> None:
    recipe = tiny_recipe(over_selection=1.5, **changes)
    (one, plain), (two, strong) = (seen(recipe, deepest) for deepest in ((), (3, 4, 3, 9, 3, 3)))
    assert one.tasks == two.tasks
    assert one.updates == two.updates
    assert told(plain) == told(strong)
    assert same(plain[-1].progress.params, strong[-1].progress.params)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"aggregate": Median()},
        {"feedback": True, "up": codec("SP-25")},
        {"growth": Plateau(window=1, least=2)},
        {"schedule": IN_TURNS, "local": KEEPS},
    ],
    ids=["plain", "median", "error feedback", "adaptive growth", "in turns"],
)
def test_workers_do_not_change_a_bit(changes: dict[str, Any]) -> None:
    recipe = tiny_recipe(server=fedadam(), cohort=4, **changes)
    one, two = rounds(recipe), rounds(recipe, workers=2)
    assert told(one) == told(two)
    assert same(one[-1].progress.params, two[-1].progress.params)


@pytest.mark.parametrize(
    "changes",
    [{"schedule": progressive(6, stages=3, warmup=1)}, {"schedule": IN_TURNS, "local": KEEPS}],
    ids=["the first blocks", "in turns"],
)
def test_a_stopped_run_continues_to_the_same_bits(tmp_path: Path, changes: dict[str, Any]) -> None:
    recipe = tiny_recipe(server=fedadam(), feedback=True, up=codec("SP-25"), **changes)
    experiment = tiny_experiment(data=weak_data(), recipe=recipe)
    run(experiment, tmp_path / "whole")
    for stop in (1, 3, 4, 6):
        for record in train(experiment, tmp_path / f"stop{stop}", data=tmp_path):
            if record["round"] == stop:
                break
        run(experiment, tmp_path / f"stop{stop}")
        assert outcome(tmp_path / f"stop{stop}") == outcome(tmp_path / "whole")


def outcome(folder: Path) -> list[Any]:
    records = RunDirectory(folder).records()
    for record in records:
        del record["seconds"], record["total"]["seconds"]
    return [json.loads((folder / "summary.json").read_text())["model_sha256"], records]


@pytest.fixture
def _in_a_run() -> Iterator[None]:
    """Flower makes messages only inside a run."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
    yield
    TaskIdentity._run_id = TaskIdentity._node_id = TaskIdentity._task_id = None


@pytest.mark.parametrize("changes", [{}, {"schedule": IN_TURNS}], ids=["the first blocks", "in turns"])
@pytest.mark.usefixtures("_in_a_run")
def test_a_flower_grid_trains_weak_clients_to_the_same_bits(changes: dict[str, Any]) -> None:
    recipe = tiny_recipe(cohort=4, up=codec("LQ-8"), **changes)

    def make(settings: Mapping[str, Any]) -> Setup:
        return Setup(tiny_model(), weak_data(), recipe, RUN)

    nodes = {7: {"partition-id": 0, "num-partitions": 2}, 5: {"partition-id": 1, "num-partitions": 2}}
    engine = GridEngine(MemoryGrid(client_app(make), nodes), Patience(deadline=5, start=5, answer=5, poll=0.001))
    there = list(federate(tiny_model(), tiny_data().sizes, recipe, engine, deepest=DEPTHS))
    here = rounds(recipe)
    assert told(there) == told(here)
    assert same(there[-1].progress.params, here[-1].progress.params)


# --- what a run says, and what is refused ---------------------------------------------------------------------------


def test_the_summary_counts_the_full_model_and_the_file_has_the_weak_clients_heads_too(tmp_path: Path) -> None:
    strong = run(tiny_experiment(), tmp_path / "strong")
    weak = run(tiny_experiment(data=weak_data()), tmp_path / "weak")
    assert weak["parameters"] == strong["parameters"]
    kept = {part(name) for name in load((tmp_path / "weak" / "model.safetensors").read_bytes())}
    assert kept == {"E1", "E2", "E3", "G1", "G2", "G3"}


def test_depths_are_part_of_what_an_experiment_is() -> None:
    names = [identity(tiny_experiment(data=data)) for data in (tiny_data(), weak_data(), weak_data((3,) * 6))]
    assert len(set(names)) == 3
    assert names[0] == identity(tiny_experiment(data=weak_data(())))


@pytest.mark.parametrize(
    ("deepest", "message"),
    [
        ((1, 2), "2 depths for 6 clients"),
        ((3,) * 7, "7 depths for 6 clients"),
        ((3, 3, 0, 3, 3, 3), "client 2 declares stage 0 as its deepest"),
    ],
)
def test_depths_that_do_not_fit_the_population_are_refused(deepest: Sequence[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        weak_data(deepest)
    with pytest.raises(DataError, match=message):
        next(
            federate(tiny_model(), tiny_data().sizes, tiny_recipe(), Seen(tiny_recipe(), tiny_data()), deepest=deepest)
        )


def test_from_clients_takes_depths() -> None:
    some = torch.zeros(2, 6), torch.zeros(2, dtype=torch.long)
    assert from_clients([some, some], test=some, deepest=(1, 2)).deepest == (1, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"delta": True}, "delta=True needs clients that all hold the same model"),
        ({"weighting": "uniform", "privacy": PRIVACY}, "privacy needs clients that all train"),
    ],
    ids=["delta", "privacy"],
)
def test_what_cannot_hold_with_weak_clients_is_refused_and_holds_where_all_are_strong(
    changes: dict[str, Any], message: str
) -> None:
    recipe = tiny_recipe(schedule=progressive(3, stages=3), **changes)
    with pytest.raises(UsageError, match=message):
        rounds(recipe)
    with pytest.raises(UsageError, match=message):
        plan(tiny_experiment(data=weak_data(), recipe=recipe))
    assert len(rounds(recipe, deepest=(3,) * 6)) == 3
