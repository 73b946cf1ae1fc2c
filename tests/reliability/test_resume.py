"""A run that is stopped after every single round ends with the bits of one that never was, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reliability.cases import SERVERS, Case, outcome, plain

from progfed.codec import codec
from progfed.recipe.aggregate import Clipped, Median, Trimmed
from progfed.recipe.privacy import Privacy
from progfed.recipe.recipe import Local
from progfed.runs.train import run, train
from progfed.schedule import layerwise, mixed, partial, progressive, random
from reliability import workspace

SCHEDULE = progressive(3, stages=3, lengths=(1, 1, 1), warmup=2)
"""Rounds inside each stage, inside both warm-ups, and on each side of every border between them."""
CODECS = ("float", "fp16", "bf16", "LQ-8", "LQ-4", "LQ-2", "LQ-1", "LQ-4@16", "SP-25", "RAND-10", "TOP-10")
CHAINS = ("LQ-8+SP-25", "SP-25+LQ-8", "ROT+LQ-2")
SECRET = "9c1f83e07a4b5d6210c4e8f7b3a29d51"


@pytest.fixture
def folder() -> Iterator[Path]:
    with workspace() as made:
        yield made


def case(**changes: Any) -> Case:
    return plain(**{"schedule": SCHEDULE, **changes})


def unbroken(made: Case, folder: Path) -> str:
    run(made.experiment, folder / "whole")
    return outcome(folder / "whole")


def stopped_after_every_round(made: Case, folder: Path, *, shift: int = 0) -> str:
    """One round, then stopped and started again, by turns with one worker and with two."""
    cut = folder / f"cut{shift}"
    for number in range(sum(phase.rounds for phase in made.experiment.recipe.schedule)):
        started = train(made.experiment, cut, data=folder, workers=1 + (number + shift) % 2)
        assert next(started)["round"] == number + 1
        started.close()
    run(made.experiment, cut)
    return outcome(cut)


def test_the_schedule_has_rounds_inside_and_at_the_borders_of_growth_and_warmup() -> None:
    assert [(phase.stage, phase.warmup, phase.rounds) for phase in SCHEDULE] == [
        (1, False, 1),
        (2, True, 2),
        (2, False, 1),
        (3, True, 2),
        (3, False, 1),
    ]


@pytest.mark.parametrize("server", SERVERS)
def test_every_server_optimizer_goes_on_where_it_was(folder: Path, server: str) -> None:
    made = case(server=SERVERS[server]())
    whole = unbroken(made, folder)
    assert [stopped_after_every_round(made, folder, shift=shift) for shift in (0, 1)] == [whole, whole]


@pytest.mark.parametrize("name", CODECS + CHAINS)
@pytest.mark.parametrize("feedback", [False, True], ids=["forgetting", "with error feedback"])
def test_every_codec_goes_on_where_it_was(folder: Path, name: str, feedback: bool) -> None:
    made = case(up=codec(name), down=codec(name), feedback=feedback, delta=feedback)
    assert stopped_after_every_round(made, folder) == unbroken(made, folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"schedule": layerwise(4, stages=3)},
        {"schedule": partial(4, stages=3)},
        {"schedule": mixed(4, stages=3)},
        {"schedule": random(4, stages=3)},
        {"aggregate": Median()},
        {"aggregate": Trimmed(0.4), "over_selection": 1.3},
        {"aggregate": Clipped(0.5)},
        {"privacy": Privacy(clip=1.0, noise=0.5, secret=SECRET), "weighting": "uniform"},
        {"delta": True},
        {"local": Local(batch=2, momentum=0.9, keep_momentum=True)},
    ],
    ids=[
        "layerwise",
        "partial",
        "mixed",
        "random",
        "median",
        "trimmed mean with reserves",
        "clipped",
        "private",
        "changes sent down",
        "momentum that is kept",
    ],
)
def test_every_other_way_to_train_goes_on_where_it_was(folder: Path, changes: dict[str, Any]) -> None:
    made = case(**changes)
    assert stopped_after_every_round(made, folder) == unbroken(made, folder)
