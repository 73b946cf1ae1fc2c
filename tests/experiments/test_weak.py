"""Who is weak in the comparison of weak clients: what a quarter of the memory holds."""

from __future__ import annotations

import pytest

from progfed.costs.devices import deepest_for, pieces_for
from progfed.costs.memory import in_pieces, phase_memory
from progfed.devices import Device
from progfed.experiments.weak import DEEPEST, RUNS, STAGES
from progfed.runs.experiment import Experiment

WHOLE = RUNS[0]
MODEL, LOCAL = WHOLE.make_model(), WHOLE.recipe.local
QUARTER = Device(memory=phase_memory(MODEL, WHOLE.recipe.schedule[0], LOCAL).peak / 4)


@pytest.mark.parametrize("run", RUNS[4:], ids=lambda run: run.run)
def test_a_quarter_of_the_memory_holds_what_weak_clients_train(run: Experiment) -> None:
    recipe = run.recipe
    assert deepest_for(MODEL, [QUARTER], recipe.local, schedule=recipe.schedule, piece=1) == (DEEPEST,)
    (piece,) = pieces_for(MODEL, [QUARTER], recipe.local, schedule=recipe.schedule, deepest=[DEEPEST])
    assert 1 <= piece < LOCAL.batch


def test_a_quarter_of_the_memory_does_not_hold_the_whole_model_for_a_single_image() -> None:
    alone = in_pieces(LOCAL, 1)
    assert phase_memory(MODEL, WHOLE.recipe.schedule[0], alone).peak > QUARTER.memory
    assert MODEL.stages == STAGES > DEEPEST
