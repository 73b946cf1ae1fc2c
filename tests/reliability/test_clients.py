"""Clients that do not answer, answer too much, or send hostile bytes; and files that are broken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from reliability.broken_files import broken_files
from reliability.cases import plain
from reliability.clients import Unreliable, dropouts, sieges
from reliability.hostile import hostile_messages
from reliability.steady import same_bits

from progfed.cli.settings import override
from progfed.engines.local import LocalEngine
from progfed.errors import TrainingError, UsageError
from progfed.population import FederatedData
from progfed.recipe.aggregate import Median
from progfed.runs.plan import plan
from progfed.schedule import Phase
from progfed.server.broadcast import Broadcast
from progfed.server.loop import Round, federate
from progfed.server.replies import collect
from progfed.wire.engine import ClientState, Task, Update
from progfed.wire.message import DOWN, UP, Envelope, seal
from reliability import workspace

RUN = "0" * 16


@pytest.fixture
def folder() -> Iterator[Path]:
    with workspace() as made:
        yield made


def rounds(*, drop: float = 0.0, deadline: float = float("inf"), workers: int = 1, **changes: object) -> list[Round]:
    made = plain(**changes).experiment
    assert isinstance(made.data, FederatedData)
    with LocalEngine(made.make_model(), made.data, made.recipe, workers=workers) as engine:
        flaky = Unreliable(engine, drop=drop, deadline=deadline)
        return list(federate(made.make_model(), made.data.sizes, made.recipe, flaky))


def same(left: list[Round], right: list[Round]) -> bool:
    one, other = left[-1].progress.params, right[-1].progress.params
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_five_thousand_hostile_messages_are_rejected_with_a_reason() -> None:
    assert hostile_messages(5000, seed=0) == 5000


def test_hostile_messages_leave_the_same_model_as_silence() -> None:
    assert sieges(seed=0) > 30


def test_forty_broken_files_are_refused_by_name_and_nothing_is_written(folder: Path) -> None:
    assert broken_files(42, folder, seed=0) >= 36


def test_a_tenth_of_the_clients_dropping_out_is_made_up_for() -> None:
    assert len(dropouts(0.1, seed=0)) == 7


def test_two_workers_give_the_bits_of_one() -> None:
    assert same_bits(1) == 1


def test_reserves_change_nothing_while_nobody_fails() -> None:
    without, asked = rounds(), rounds(over_selection=1.3)
    assert same(without, asked)
    assert [done.surplus for done in asked] == [1] * len(asked)
    assert [done.loss for done in asked] == [done.loss for done in without]
    assert all(a.cost.down_bytes == 4 * b.cost.down_bytes // 3 for a, b in zip(asked, without, strict=True))
    assert all(a.cost.flops > b.cost.flops for a, b in zip(asked, without, strict=True))
    assert asked[-1].cost.paper_bytes == without[-1].cost.paper_bytes


def test_a_reserve_stands_in_for_a_client_that_is_lost_whoever_answers_first() -> None:
    one, two = (rounds(drop=0.3, over_selection=1.6, workers=workers) for workers in (1, 2))
    assert same(one, two)
    assert [done.rejected for done in one] == [done.rejected for done in two]
    assert any(done.rejected and done.clients == 3 for done in one)


def test_lateness_is_simulated_without_a_clock_so_that_it_repeats() -> None:
    late, again = (rounds(deadline=1.5, over_selection=1.6) for _ in range(2))
    assert same(late, again)
    assert sum(done.rejected.get("missing", 0) for done in late) > 0
    assert not same(late, rounds())


def test_whom_a_round_asks_is_the_cohort_and_other_clients_without_repetition() -> None:
    recipe = plain(cohort=4, over_selection=1.5).experiment.recipe
    first_reserves = set()
    for number in range(200):
        asked = recipe.draw(20, number)
        assert len(set(asked)) == len(asked) == 6
        assert asked[:4] == plain(cohort=4).experiment.recipe.draw(20, number)
        assert set(asked) <= set(range(20))
        first_reserves.add(asked[4])
    assert len(first_reserves) == 20
    assert recipe.asked(5) == len(recipe.draw(5, 1)) == 5


def test_a_round_without_any_reply_ends_with_a_sentence() -> None:
    with pytest.raises(TrainingError, match=r"0 of 3 updates were valid, 1 needed \(3 missing; first: no reply"):
        rounds(drop=1.0)


@dataclass
class Answering:
    """An engine that gives these updates, whatever the tasks are."""

    updates: list[Update]
    client_states: dict[int, ClientState] = field(default_factory=dict)

    def __call__(self, tasks: Sequence[Task]) -> Iterable[Update]:
        return self.updates


def test_weights_are_renormalised_over_those_who_answered() -> None:
    recipe = plain().experiment.recipe
    schema = {"w": (1,)}

    def update(client: int, examples: int, value: float) -> Update:
        envelope = Envelope(UP, RUN, 1, 1, client, examples, loss=value)
        return Update(client, seal(envelope, {"w": torch.tensor([value])}, recipe.up, 0))

    phase = Phase(1, 1)
    tasks = [Task(client, 1, phase, 0.1, b"") for client in (0, 1, 2)]
    engine, sent = Answering([update(2, 8, 4.0), update(0, 4, 1.0)]), Broadcast({}, {}, Envelope(DOWN, RUN, 1, 1))
    with collect(engine, tasks, sent, recipe=recipe, sizes=(4, 6, 8), schemas={phase: schema}) as replies:
        mean = recipe.combine(replies, 1)
    assert mean["w"].item() == (4 * 1.0 + 8 * 4.0) / 12
    found = replies.summary
    assert (found.clients, found.rejected, found.loss) == (2, {"missing": 1}, 3.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"over_selection": 0.9}, "over_selection is 1 or more"),
        ({"deadline": 0.0}, "a deadline is a positive number of seconds"),
        ({"min_updates": 4}, "min_updates must be 1 to the cohort's 3"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plain(**changes)


def test_the_command_line_sets_what_a_round_does_about_failing_clients() -> None:
    experiment = plain().experiment
    for setting in ("aggregate=median", "over_selection=1.3", "deadline=30", "min_updates=2"):
        experiment = override(experiment, setting)
    recipe = experiment.recipe
    assert (recipe.aggregate, recipe.over_selection, recipe.deadline, recipe.min_updates) == (Median(), 1.3, 30.0, 2)
    with pytest.raises(UsageError, match="takes one of mean, median, trimmed"):
        override(experiment, "aggregate=average")


def test_reserves_are_part_of_the_plan() -> None:
    planned = plan(plain(over_selection=1.3).experiment)["total"]
    spent = rounds(over_selection=1.3)[-1].progress.cost
    assert (planned["down_bytes"], planned["up_bytes"]) == (spent.down_bytes, spent.up_bytes)
    assert planned["paper_bytes"] == spent.paper_bytes
