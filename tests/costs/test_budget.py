"""Stage lengths from a budget of bytes or FLOPs."""

import pytest

from progfed.costs.budget import within_budget
from progfed.errors import UsageError
from progfed.models import convnet_cifar, convnet_mnist, resnet18
from progfed.recipe.recipe import Recipe
from progfed.runs.experiment import Experiment
from progfed.runs.plan import plan, relative
from progfed.schedule import Schedule, end_to_end, length, progressive
from tiny import tiny_data


def shares(make: object, schedule: Schedule) -> dict[str, float]:
    model = make()  # type: ignore[operator]
    costs = [
        plan(Experiment(name="budget", model=model, data=tiny_data(), recipe=Recipe(schedule=chosen, cohort=1)))
        for chosen in (schedule, end_to_end(length(schedule), stages=model.stages))
    ]
    return relative(*costs)


@pytest.mark.parametrize("make", [convnet_cifar, convnet_mnist])
@pytest.mark.parametrize("budget", [0.5, 0.72, 0.9])
def test_a_run_spends_what_its_budget_allows_and_not_a_round_less(make: object, budget: float) -> None:
    model = make()  # type: ignore[operator]
    schedule = within_budget(model, 60, budget=budget)
    assert length(schedule) == 60
    assert (
        budget - (model.stages - 1) / 60 < shares(make, schedule)["bytes"] <= budget + 1e-3
    )  # envelopes weigh a little


def test_a_budget_of_flops_counts_flops() -> None:
    schedule = within_budget(resnet18(), 100, budget=0.8, cost="flops")
    assert 0.77 < shares(resnet18, schedule)["flops"] <= 0.8


def test_what_no_lengths_can_keep_is_refused() -> None:
    with pytest.raises(UsageError, match="give a budget of"):
        within_budget(convnet_cifar(), 20, budget=0.01)
    with pytest.raises(UsageError, match="less than 1"):
        within_budget(convnet_cifar(), 20, budget=1.5)
    with pytest.raises(UsageError, match="'bytes' or 'flops'"):
        within_budget(convnet_cifar(), 20, budget=0.5, cost="seconds")  # type: ignore[arg-type]


def test_the_head_beside_the_new_one_counts_towards_the_budget() -> None:
    with_head, without = (
        within_budget(convnet_cifar(heads="grid"), 40, budget=0.6, overlap=overlap) for overlap in (9, 0)
    )
    assert with_head[0].rounds > without[0].rounds
    assert shares(lambda: convnet_cifar(heads="grid"), with_head)["bytes"] <= 0.601


def test_the_size_of_a_stage_in_a_plan_is_that_of_its_sub_model_with_its_own_head() -> None:
    recipe = [Recipe(schedule=progressive(24, stages=4, overlap=overlap), cohort=1) for overlap in (1, 0)]
    made = [plan(Experiment(name="sizes", model=convnet_cifar(), data=tiny_data(), recipe=one)) for one in recipe]
    overlapping, plain = ([row["parameters"] for row in one["stages"]] for one in made)
    assert overlapping == plain
    assert made[0]["total"]["up_bytes"] > made[1]["total"]["up_bytes"]
