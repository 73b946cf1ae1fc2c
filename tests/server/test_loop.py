"""The loop: one round against independent computations, growth, warm-up, and what it rejects."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from progfed import rng
from progfed.blocks import Progressive, state
from progfed.client.learner import Learner
from progfed.engines.local import LocalEngine
from progfed.errors import DataError, TrainingError, UsageError
from progfed.population import Examples, FederatedData, from_clients
from progfed.recipe.growth import Plateau
from progfed.recipe.optimizers import ServerOptimizer, fedadam, fedavg, fedyogi
from progfed.recipe.rate import Constant
from progfed.recipe.recipe import Local, Recipe, StepLimit
from progfed.recipe.turns import turn_at
from progfed.runs.identity import describe
from progfed.schedule import Phase, end_to_end, length, mixed, partial, progressive, random
from progfed.server.loop import Progress, Round, federate, grow
from progfed.wire.engine import Task, Update
from tiny import tiny_data, tiny_model, tiny_recipe

RUN = "0" * 16


def rounds(model: Progressive, data: FederatedData, recipe: Recipe, *, start: Progress | None = None) -> list[Round]:
    with LocalEngine(model, data, recipe) as engine:
        return list(federate(model, data.sizes, recipe, engine, start=start))


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


# --- one round against independent computations ---------------------------------------------------------------------


def linear_model() -> Progressive:
    return Progressive(
        blocks=(lambda: nn.Linear(2, 2, bias=False),),
        heads=(lambda: nn.Linear(2, 2, bias=False),),
        example=torch.zeros(1, 2),
        name="linear",
    )


def squared(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return ((outputs - targets) ** 2).mean()


def linear_data() -> FederatedData:
    draw = torch.Generator().manual_seed(4)
    clients = [(torch.randn(n, 2, generator=draw), torch.randn(n, 2, generator=draw)) for n in (3, 5)]
    return from_clients(clients, test=clients[0])


def numpy_client(
    e: np.ndarray,
    g: np.ndarray,
    x: np.ndarray,
    y: np.ndarray,
    *,
    lr: float,
    steps: int,
    prox: float,
    decay: float,
    momentum: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Full-batch gradient descent on mean((x E^T G^T - y)^2), by hand."""
    e0, g0 = e.copy(), g.copy()
    ve, vg = np.zeros_like(e), np.zeros_like(g)
    for _ in range(steps):
        hidden = x @ e.T
        slope = 2 * (hidden @ g.T - y) / y.size
        grad_g, grad_e = slope.T @ hidden, (slope @ g).T @ x
        grad_e = grad_e + decay * e + prox * (e - e0)
        grad_g = grad_g + decay * g + prox * (g - g0)
        ve, vg = momentum * ve + grad_e, momentum * vg + grad_g
        e, g = e - lr * ve, g - lr * vg
    return e - e0, g - g0


@pytest.mark.parametrize("server", ["fedavg", "fedadam", "fedyogi"])
@pytest.mark.parametrize("prox", [0.0, 0.3])
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_a_round_equals_an_independent_numpy_computation(server: str, prox: float, weighting: str) -> None:
    optimizers: dict[str, ServerOptimizer] = {
        "fedavg": fedavg(),
        "fedadam": fedadam(0.1, 0.9, 0.99, 0.01),
        "fedyogi": fedyogi(0.1, 0.9, 0.99, 0.01),
    }
    model, data = linear_model(), linear_data()
    local = Local(epochs=3, batch=100, momentum=0.5, weight_decay=0.01, prox=prox, loss=squared)
    recipe = Recipe(
        schedule=end_to_end(1, stages=1),
        cohort=2,
        rate=Constant(0.1),
        local=local,
        server=optimizers[server],
        weighting=weighting,  # type: ignore[arg-type]
    )
    done = rounds(model, data, recipe)[-1]

    start = {name: value.double().numpy() for name, value in state(model.at(1)).items()}
    changes, weights = [], []
    for client in range(2):
        examples = data.client(client)
        x, y = examples.inputs.double().numpy(), examples.targets.double().numpy()
        changes.append(
            numpy_client(
                start["E1.weight"], start["G1.weight"], x, y, lr=0.1, steps=3, prox=prox, decay=0.01, momentum=0.5
            )
        )
        weights.append(len(x) if weighting == "examples" else 1)
    for index, name in enumerate(("E1.weight", "G1.weight")):
        delta = np.average([change[index] for change in changes], axis=0, weights=weights)
        if server == "fedavg":
            step = delta
        else:
            v0 = 0.01**2
            v = 0.99 * v0 + 0.01 * delta**2 if server == "fedadam" else v0 - 0.01 * delta**2 * np.sign(v0 - delta**2)
            step = 0.1 * 0.1 * delta / (np.sqrt(v) + 0.01)
        assert np.allclose(done.progress.params[name].numpy(), start[name] + step, rtol=1e-4, atol=1e-6)


def test_one_client_with_one_batch_equals_plain_torch_sgd() -> None:
    model, data = tiny_model(), tiny_data(clients=1)
    local = Local(epochs=1, batch=100, momentum=0.9, weight_decay=1e-3, clip=None)
    recipe = Recipe(schedule=end_to_end(1, stages=1), cohort=1, rate=Constant(0.3), local=local, seed=3)
    done = rounds(model, data, recipe)[-1]

    module = model.at(1, seed=3)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3, momentum=0.9, weight_decay=1e-3)
    examples = data.client(0)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(rng.number(3, "shuffle", 1, 0)))
    functional.cross_entropy(module(examples.inputs[order]), examples.targets[order]).backward()
    before = {name: value.clone() for name, value in state(module).items()}
    optimizer.step()
    # the server adds the change to what it sent: new = old + (trained - old)
    expected = {name: before[name] + (value - before[name]) for name, value in state(module).items()}
    assert same(done.progress.params, expected)


def test_local_sgd_equals_torch_sgd_over_many_batches() -> None:
    from progfed.client.sgd import Sgd

    draw = torch.Generator().manual_seed(0)
    ours = [torch.randn(3, 2, generator=draw).requires_grad_()]
    theirs = nn.Parameter(ours[0].detach().clone())
    optimizer = torch.optim.SGD([theirs], lr=0.1, momentum=0.9, weight_decay=0.01)
    step = Sgd(ours, Local(momentum=0.9, weight_decay=0.01, clip=None), 0.1)  # type: ignore[arg-type]
    for _ in range(5):
        x = torch.randn(4, 3, generator=draw)
        step(((x @ ours[0]) ** 2).mean())
        optimizer.zero_grad()
        ((x @ theirs) ** 2).mean().backward()
        optimizer.step()
    assert torch.equal(ours[0].detach(), theirs.detach())


def plain_sgd(module: nn.Module, data: FederatedData, *, rounds: int, recipe: Recipe) -> None:
    """Epochs of `torch.optim.SGD` over the only client's examples, in the order in which it would see them."""
    local, examples = recipe.local, data.client(0)
    learning = [value for value in module.parameters() if value.requires_grad]
    optimizer = torch.optim.SGD(learning, lr=0.1, momentum=local.momentum, weight_decay=local.weight_decay)
    for number in range(1, rounds + 1):
        order = torch.randperm(len(examples.targets), generator=rng.generator(recipe.seed, "shuffle", number, 0))
        before = {name: value.clone() for name, value in state(module).items()}
        for index in order.split(local.batch):
            optimizer.zero_grad()
            functional.cross_entropy(module(examples.inputs[index]), examples.targets[index]).backward()
            optimizer.step()
        with torch.no_grad():  # what the server makes of it: new = old + (trained - old)
            for name, value in state(module).items():
                value.copy_(before[name] + (value - before[name]))


@pytest.mark.parametrize("keep", [True, False])
def test_momentum_that_is_kept_is_that_of_plain_torch_sgd_over_many_epochs(keep: bool) -> None:
    model, data = tiny_model(), tiny_data(clients=1)
    local = Local(batch=2, momentum=0.9, weight_decay=1e-3, keep_momentum=keep)
    recipe = Recipe(schedule=end_to_end(4, stages=1), cohort=1, rate=Constant(0.1), local=local, seed=3)
    module = model.at(1, seed=3)
    plain_sgd(module, data, rounds=4, recipe=recipe)
    assert same(rounds(model, data, recipe)[-1].progress.params, state(module)) == keep


def test_at_a_growth_survivors_keep_their_momentum_and_new_names_start_without() -> None:
    model, data = tiny_model(), tiny_data(clients=1)
    local = Local(batch=2, momentum=0.9, keep_momentum=True)
    recipe = tiny_recipe(schedule=progressive(4, stages=2, lengths=(2, 2), warmup=1, overlap=0), cohort=1, local=local)
    with LocalEngine(model, data, recipe) as engine:
        kept = []
        for _ in federate(model, data.sizes, recipe, engine):
            kept.append({name: value.clone() for name, value in engine.client_states[0]["velocity"].items()})
    parts = [sorted({name.split(".")[0] for name in velocity}) for velocity in kept]
    assert parts == [["E1", "G1"]] * 2 + [["E1", "E2", "G2"]] * 3
    survivors = [name for name in kept[1] if name.startswith("E1")]
    assert all(torch.equal(kept[1][name], kept[2][name]) for name in survivors)  # frozen in the warm-up
    assert not any(torch.equal(kept[2][name], kept[3][name]) for name in survivors)


def test_a_client_whose_numbers_are_not_finite_keeps_the_momentum_it_had() -> None:
    model, data = tiny_model(), tiny_data(clients=2)
    loaded: list[int] = []
    seen: list[Round] = []

    def load(index: int) -> Examples:
        loaded.append(index)
        return data.load(index)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets) * (math.inf if seen and loaded[-1] == 1 else 1.0)

    local = Local(momentum=0.9, keep_momentum=True, loss=loss)
    recipe = tiny_recipe(schedule=end_to_end(2, stages=3), cohort=2, local=local)
    with LocalEngine(model, replace(data, load=load), recipe) as engine:
        for r in federate(model, data.sizes, recipe, engine):
            seen.append(r)
            if r.number == 1:
                before = dict(engine.client_states[1]["velocity"])
        assert seen[-1].rejected == {"not finite": 1}
        assert same(engine.client_states[1]["velocity"], before)


def test_steps_of_a_large_loss_are_skipped_and_the_others_taken() -> None:
    model, data = linear_model(), linear_data()
    far = Examples(torch.full((1, 2), 50.0), torch.full((1, 2), 1000.0))
    near = data.client(0).take(slice(0, 1))
    both = from_clients(
        [(torch.cat([near.inputs, far.inputs]), torch.cat([near.targets, far.targets]))],
        test=(near.inputs, near.targets),
    )
    alone = from_clients([(near.inputs, near.targets)], test=(near.inputs, near.targets))
    recipe = Recipe(schedule=end_to_end(1, stages=1), cohort=1, local=Local(batch=1, loss=squared, skip_above=10.0))
    guarded = rounds(model, both, recipe)[-1]
    without = rounds(model, alone, replace(recipe, local=Local(batch=1, loss=squared)))[-1]
    assert same(guarded.progress.params, without.progress.params)
    assert guarded.loss > 10 > without.loss  # a skipped step still tells its loss


class Looks(TorchFunctionMode):
    """Counts how often a program decides by a tensor's value, for which a GPU would have to be waited for."""

    number = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += func is torch.Tensor.__bool__
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("limit", "looks"), [(math.inf, 0), (10.0, 3)])
def test_a_loss_is_looked_at_before_its_step_only_where_there_is_a_limit(limit: float, looks: int) -> None:
    local = Local(batch=2, skip_above=limit)
    recipe = Recipe(schedule=end_to_end(1, stages=1), cohort=1, local=local)
    with Looks() as seen:
        rounds(tiny_model(), tiny_data(clients=1), recipe)
    assert seen.number == looks


def test_later_settings_of_local_training_leave_the_identity_of_older_runs() -> None:
    told = describe(Local(momentum=0.9))
    assert not {"skip_above", "keep_momentum"} & told.keys()
    assert describe(Local(momentum=0.9, keep_momentum=True, skip_above=10.0)).items() >= {
        ("skip_above", 10.0),
        ("keep_momentum", True),
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"skip_above": 0.0}, "skip_above is a loss above 0"),
        ({"skip_above": math.nan}, "skip_above is a loss above 0"),
        ({"keep_momentum": True}, "needs a momentum above 0"),
    ],
    ids=str,
)
def test_local_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Local(**settings)


@pytest.mark.parametrize("norm", [0.01, 0.5, 1e6])
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.01)])
def test_clipping_equals_torchs_to_the_bit(norm: float, momentum: float, decay: float) -> None:
    from progfed.client.sgd import Sgd

    draw = torch.Generator().manual_seed(0)
    start = [torch.randn(3, 8, generator=draw), torch.randn(8, generator=draw), torch.randn(8, 5, generator=draw)]
    ours, theirs = ([value.clone().requires_grad_() for value in start] for _ in range(2))
    optimizer = torch.optim.SGD(theirs, lr=0.1, momentum=momentum, weight_decay=decay)
    step = Sgd(ours, Local(momentum=momentum, weight_decay=decay, clip=norm), 0.1)
    for _ in range(5):
        x = torch.randn(4, 3, generator=draw)
        step(_loss(x, ours))
        optimizer.zero_grad()
        _loss(x, theirs).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(theirs, norm)
        optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


def test_a_gradient_that_two_parameters_share_is_scaled_once() -> None:
    from progfed.client.sgd import clipped

    one, other = torch.full((2, 2), 3.0).requires_grad_(), torch.full((4,), 3.0).requires_grad_()
    grads = torch.autograd.grad((one.view(-1) + other).square().sum(), [one, other])
    expected = [grad / torch.cat([part.flatten() for part in grads]).norm() for grad in grads]
    for ours, theirs in zip(clipped(grads, 1.0), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_limit_of_a_step_follows_the_rate_and_the_momentum() -> None:
    local = Local(momentum=0.9, clip=StepLimit(2.0))
    assert [local.largest_norm(lr) for lr in (0.1, 0.01, 0.0)] == pytest.approx([2.0, 20.0, math.inf])
    assert Local(clip=StepLimit(2.0)).largest_norm(0.1) == pytest.approx(20.0)
    assert Local(clip=3.0).largest_norm(0.1) == 3.0
    assert Local(clip=None).largest_norm(0.1) is None
    with pytest.raises(UsageError, match="positive length"):
        StepLimit(0.0)


def test_a_step_that_the_default_limit_does_not_reach_is_the_unclipped_one_to_the_bit() -> None:
    model, data = tiny_model(), tiny_data()
    plain, guarded = (rounds(model, data, tiny_recipe(local=local)) for local in (Local(clip=None), Local()))
    assert same(plain[-1].progress.params, guarded[-1].progress.params)


def _loss(x: Tensor, weights: list[Tensor]) -> Tensor:
    return ((((x @ weights[0] + weights[1]).relu()) @ weights[2]) ** 2).mean()


def test_a_norm_that_is_no_positive_number_is_refused() -> None:
    for norm in (0.0, -1.0, float("nan")):
        with pytest.raises(UsageError, match="positive number or None"):
            Local(clip=norm)


# --- growth ---------------------------------------------------------------------------------------------------------


def test_growth_keeps_survivors_makes_new_parts_and_discards_the_old_head() -> None:
    model, data = tiny_model(), tiny_data()
    done = rounds(model, data, tiny_recipe(schedule=progressive(6, stages=3, overlap=0)))
    parts = [sorted({name.split(".")[0] for name in r.progress.params}) for r in done]
    assert parts == [["E1", "G1"], ["E1", "E2", "G2"], *[["E1", "E2", "E3", "G3"]] * 4]


def test_a_survivor_enters_the_next_stage_with_the_value_it_left_with() -> None:
    model, recipe = tiny_model(), tiny_recipe(schedule=progressive(6, stages=3))
    done = rounds(model, tiny_data(), recipe)
    grown = grow(done[0].progress, model, recipe, 1)
    for name, value in done[0].progress.params.items():
        if name.startswith("E1"):
            assert torch.equal(grown.params[name], value)
    fresh = model.init("E2", seed=recipe.seed)
    assert all(torch.equal(grown.params[name], value) for name, value in fresh.items())


def test_in_warm_up_frozen_names_do_not_change_and_are_not_uploaded() -> None:
    model, data = tiny_model(), tiny_data()
    done = rounds(model, data, tiny_recipe(server=fedadam(), schedule=progressive(9, stages=3, warmup=2)))
    for before, after in pairwise(done):
        if not after.phase.warmup:
            continue
        frozen = [name for name in before.progress.params if name.startswith("E") and name in after.progress.params]
        frozen = [name for name in frozen if name.split(".")[0] != f"E{after.phase.stage}"]
        assert frozen
        assert all(torch.equal(before.progress.params[name], after.progress.params[name]) for name in frozen)
        new = [
            name
            for name in after.progress.params
            if name.split(".")[0] in (f"E{after.phase.stage}", f"G{after.phase.stage}")
        ]
        sent = sum(after.progress.params[name].numel() for name in new)
        overhead = after.cost.up_bytes - 3 * 4 * sent
        assert 0 < overhead < 3 * 200
        full = next(r for r in done if r.phase.stage == after.phase.stage and not r.phase.warmup)
        assert after.cost.flops / after.cost.down_bytes < full.cost.flops / full.cost.down_bytes * 1.5


def test_growing_looks_no_further_ahead_than_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = tuple(Phase(1 + number % 2, 1) for number in range(1000))  # as `random` makes them: a phase a round
    looked: list[Phase] = []
    plain = Progressive.parts
    monkeypatch.setattr(Progressive, "parts", lambda self, phase: looked.append(phase) or plain(self, phase))  # type: ignore[func-returns-value]
    recipe = replace(tiny_recipe(), schedule=schedule)
    begun = grow(Progress(), tiny_model(), recipe, 0)
    grown = grow(begun, tiny_model(), recipe, 1)
    assert {name.split(".")[0] for name in grown.params} == {"E1", "E2", "G1", "G2"}  # stage 1 comes again
    assert len(looked) < 10


def test_an_optimizer_that_resets_starts_anew_at_a_growth_and_again_after_its_warm_up() -> None:
    schedule = progressive(4, stages=2, lengths=(2, 2), warmup=2)
    done = rounds(tiny_model(), tiny_data(), tiny_recipe(schedule=schedule, server=fedadam(reset=True)))
    steps = [{int(count) for count in r.progress.state["0.t"].values()} for r in done]
    assert steps == [{1}, {2}, {0, 1}, {0, 2}, {1}, {2}]


def test_one_stage_is_end_to_end_bit_for_bit_costs_included() -> None:
    model, data = linear_model(), linear_data()
    recipes = [
        Recipe(schedule=schedule, cohort=2, local=Local(loss=squared, batch=2))
        for schedule in (progressive(4, stages=1, warmup=2), end_to_end(4, stages=1))
    ]
    left, right = (rounds(model, data, recipe) for recipe in recipes)
    assert same(left[-1].progress.params, right[-1].progress.params)
    assert [replace(r.cost, seconds=0) for r in left] == [replace(r.cost, seconds=0) for r in right]


@pytest.mark.parametrize("make", [partial, mixed, random])
def test_other_strategies_train_the_full_model_with_the_same_loop(make: object) -> None:
    schedule = make(8, stages=3)  # type: ignore[operator]
    done = rounds(tiny_model(), tiny_data(), tiny_recipe(schedule=schedule))
    assert len(done) == 8
    assert sorted({name.split(".")[0] for name in done[-1].progress.params}) == ["E1", "E2", "E3", "G3"]


def test_costs_add_up_and_messages_are_counted_for_every_client() -> None:
    done = rounds(tiny_model(), tiny_data(), tiny_recipe())
    total = done[0].cost
    for r in done[1:]:
        total = total + r.cost
    assert replace(total, seconds=0) == replace(done[-1].progress.cost, seconds=0)


def test_the_published_accounting_adds_the_new_layers_to_the_model_before_in_every_warm_up_round() -> None:
    done = rounds(tiny_model(), tiny_data(), tiny_recipe(schedule=progressive(6, stages=3, warmup=3)))
    warm = [r.cost.paper_bytes for r in done if r.phase.warmup and r.phase.stage == 2]
    first, new = 6 * 5 + 5 + 5 * 3 + 3, 5 * 5 + 5 + 5 * 3 + 3
    assert warm == [4 * 3 * (first + k * new) for k in (1, 2, 3)]


@pytest.mark.parametrize("growth", [None, Plateau(window=1, least=2, tolerance=0.99)], ids=["fixed", "adaptive"])
def test_the_published_accounting_grows_a_round_early(growth: Plateau | None) -> None:
    recipe = tiny_recipe(schedule=progressive(12, stages=2, lengths=(6, 6), overlap=0), growth=growth)
    done = rounds(tiny_model(), tiny_data(), recipe)
    first, second = 6 * 5 + 5 + 5 * 3 + 3, 6 * 5 + 5 + 5 * 5 + 5 + 5 * 3 + 3
    for r in done:
        billed = first if r.phase.stage == 1 and not r.closes else second
        assert r.cost.paper_bytes == 4 * 3 * billed
    assert [r.phase.stage for r in done].count(1) == (6 if growth is None else 2)


# --- reproducible, whatever the engine and the order ----------------------------------------------------------------


class Shuffled:
    """An engine whose replies arrive in another order."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    def __call__(self, tasks: Sequence[Task]) -> Iterable[Update]:
        return reversed([self._learner(task, {})[0] for task in tasks])


@pytest.mark.parametrize("server", [fedavg(), fedadam()], ids=["fedavg", "fedadam"])
def test_workers_and_the_order_of_replies_do_not_change_a_bit(server: ServerOptimizer) -> None:
    model, data, recipe = tiny_model(), tiny_data(), tiny_recipe(server=server)
    one = rounds(model, data, recipe)
    with LocalEngine(model, data, recipe, workers=2) as engine:
        two = list(federate(model, data.sizes, recipe, engine))
    back = list(federate(model, data.sizes, recipe, Shuffled(Learner(model, data, recipe, RUN))))
    for other in (two, back):
        assert same(one[-1].progress.params, other[-1].progress.params)
        assert [(r.loss, replace(r.cost, seconds=0)) for r in one] == [
            (r.loss, replace(r.cost, seconds=0)) for r in other
        ]


def test_a_run_continues_after_any_round_to_the_same_bits() -> None:
    model, data = tiny_model(), tiny_data()
    recipe = tiny_recipe(server=fedadam(), schedule=progressive(9, stages=3, warmup=2))
    whole = rounds(model, data, recipe)
    for cut in whole:
        rest = rounds(model, data, recipe, start=cut.progress)
        assert len(rest) == len(whole) - cut.number
        final = rest[-1].progress if rest else cut.progress
        assert same(final.params, whole[-1].progress.params)
        assert replace(final.cost, seconds=0) == replace(whole[-1].progress.cost, seconds=0)


def test_turns_count_warm_up_apart_from_the_budget() -> None:
    schedule = progressive(6, stages=3, warmup=1, hold=False)
    listed = [turn for number in range(1, 9) if (turn := turn_at(schedule, number))]
    assert [turn.number for turn in listed] == list(range(1, 9))
    assert [turn.moment.t for turn in listed] == [0, 1, 1, 2, 2, 3, 4, 5]
    assert turn_at(schedule, 9) is None


def test_rounds_that_hold_the_rate_count_for_the_budget_but_do_not_advance_it() -> None:
    schedule = progressive(6, stages=3, warmup=1)
    listed = [turn.moment for number in range(1, 9) if (turn := turn_at(schedule, number))]
    assert [moment.t for moment in listed] == [0, 0, 0, 0, 0, 1, 2, 3]
    assert {moment.of for moment in listed} == {4}
    assert length(schedule) == 6


# --- what is refused ------------------------------------------------------------------------------------------------


class Sabotage:
    """An engine that does something to some replies."""

    def __init__(self, learner: Learner, spoil: object) -> None:
        self._learner, self._spoil = learner, spoil

    def __call__(self, tasks: Sequence[Task]) -> Iterable[Update]:
        for index, task in enumerate(tasks):
            yield from self._spoil(index, self._learner(task, {})[0])  # type: ignore[operator]


SPOILERS = {
    "digest": lambda i, u: [replace(u, message=u.message[:-1] + bytes([u.message[-1] ^ 1])) if i == 0 else u],
    "length": lambda i, u: [replace(u, message=b"short") if i == 0 else u],
    "missing": lambda i, u: [] if i == 0 else [u],
    "unexpected": lambda i, u: [u, u] if i == 0 else [u],
    "client": lambda i, u: [u],
}


@pytest.mark.parametrize("reason", ["digest", "length", "missing", "unexpected"])
def test_a_bad_update_is_rejected_and_counted_and_the_round_goes_on(reason: str) -> None:
    model, data, recipe = tiny_model(), tiny_data(), tiny_recipe(schedule=end_to_end(1, stages=3))
    engine = Sabotage(Learner(model, data, recipe, RUN), SPOILERS[reason])
    done = list(federate(model, data.sizes, recipe, engine))[-1]
    assert done.rejected == {reason: 1}
    assert done.clients == (3 if reason == "unexpected" else 2)


def test_a_round_with_too_few_valid_updates_stops_with_the_reasons() -> None:
    model, data, recipe = tiny_model(), tiny_data(), tiny_recipe(min_updates=3)
    engine = Sabotage(Learner(model, data, recipe, RUN), SPOILERS["missing"])
    with pytest.raises(TrainingError, match=r"round 1: 2 of 3 updates were valid, 3 needed \(1 missing"):
        list(federate(model, data.sizes, recipe, engine))


def test_a_loss_that_is_not_finite_stops_with_advice() -> None:
    recipe = tiny_recipe(rate=Constant(1e30), schedule=end_to_end(3, stages=3))
    with pytest.raises(TrainingError, match=r"not finite.*lower the learning rate"):
        rounds(tiny_model(), tiny_data(), recipe)


def test_a_cohort_larger_than_the_population_is_refused() -> None:
    with pytest.raises(UsageError, match="a cohort of 7 clients cannot be drawn from 6"):
        rounds(tiny_model(), tiny_data(), tiny_recipe(cohort=7))


def test_a_schedule_deeper_than_the_model_is_refused_before_training() -> None:
    with pytest.raises(UsageError, match="asks for stage 4"):
        rounds(tiny_model(), tiny_data(), tiny_recipe(schedule=progressive(8, stages=4)))


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_client_data_names_the_client_whatever_the_engine(workers: int) -> None:
    good = tiny_data()
    cases = {
        "client 2 has no examples": Examples(torch.zeros(0, 6), torch.zeros(0, dtype=torch.long)),
        "client 2 has label 3, outside the 3 classes": Examples(torch.zeros(7, 6), torch.full((7,), 3)),
        "client 2 was declared with 7 examples": Examples(torch.zeros(4, 6), torch.zeros(4, dtype=torch.long)),
    }
    for message, examples in cases.items():

        def load(index: int, examples: Examples = examples) -> Examples:
            return examples if index == 2 else good.load(index)

        data = replace(good, load=load)
        recipe = tiny_recipe(cohort=6, schedule=end_to_end(1, stages=3))
        with (
            pytest.raises(DataError, match=message),
            LocalEngine(tiny_model(), data, recipe, workers=workers) as engine,
        ):
            list(federate(tiny_model(), data.sizes, recipe, engine))


def normalised() -> Progressive:
    return Progressive(
        blocks=(lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)),),
        heads=(lambda: nn.Linear(4, 3),),
        example=torch.zeros(1, 6),
    )


def test_models_with_batch_norm_average_their_statistics_and_count_them() -> None:
    data = tiny_data()
    recipe = tiny_recipe(schedule=end_to_end(1, stages=1), server=fedadam(0.1), local=Local(batch=64))
    done = rounds(normalised(), data, recipe)[-1]
    assert done.progress.params["E1.1.running_mean"].abs().sum() > 0
    assert done.cost.up_bytes > done.cost.paper_bytes + 3 * 4 * 8  # both statistics of four features travel
    assert "E1.1.num_batches_tracked" not in done.progress.params
    # the mean of what the clients measured, not an Adam step: every statistic is a convex combination
    assert done.progress.params["E1.1.running_var"].min() > 0.85


def test_the_server_optimizer_does_not_touch_running_statistics() -> None:
    """After one round they are the mean of what the clients measured, whatever the optimizer does to the weights."""
    recipe = tiny_recipe(schedule=end_to_end(1, stages=1), local=Local(batch=64))
    plain, adam = (
        rounds(normalised(), tiny_data(), replace(recipe, server=server))[-1].progress
        for server in (fedavg(), fedadam(0.1))
    )
    for name in ("E1.1.running_mean", "E1.1.running_var"):
        assert torch.equal(plain.params[name], adam.params[name])
        assert not adam.state["0.m"][name].any()
    assert not torch.equal(plain.params["E1.0.weight"], adam.params["E1.0.weight"])


@pytest.mark.parametrize("make", [progressive, mixed, partial, random])
def test_the_optimizer_keeps_state_of_the_names_there_are_and_of_no_others(make: object) -> None:
    schedule = make(8, stages=3)  # type: ignore[operator]
    for done in rounds(tiny_model(), tiny_data(), tiny_recipe(schedule=schedule, server=fedadam())):
        for tensors in done.progress.state.values():
            assert tensors.keys() == done.progress.params.keys()


def test_phases_are_values() -> None:
    assert Phase(2, 5) == Phase(2, 5)
    assert hash(Phase(2, 5)) == hash(Phase(2, 5))
