"""What the soak compares with: a run on this machine that hears only what the federation was handed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from reliability.cases import plain
from reliability.clients import Unreliable
from reliability.kills import prepare
from reliability.soak import Heard, answers_of
from reliability.variety import KINDS, stopped_and_continued

from progfed.engines.local import LocalEngine
from progfed.population import FederatedData
from progfed.server.loop import Round, federate
from progfed.wire.engine import Engine


def rounds(engine: Engine) -> Iterator[Round]:
    made = plain(cohort=4, over_selection=1.2).experiment
    assert isinstance(made.data, FederatedData)
    yield from federate(made.make_model(), made.data.sizes, made.recipe, engine)


def local() -> LocalEngine:
    made = plain(cohort=4, over_selection=1.2).experiment
    assert isinstance(made.data, FederatedData)
    return LocalEngine(made.make_model(), made.data, made.recipe)


class Noted:
    """An engine whose answers are written down as the server of the soak does."""

    def __init__(self, engine: Engine, path: Path) -> None:
        self.engine, self.path, self.client_states = engine, path, engine.client_states

    def __call__(self, tasks: Sequence[object]) -> object:
        lines = [{"round": tasks[0].round}]  # type: ignore[attr-defined]
        found = list(self.engine(tasks))  # type: ignore[arg-type]
        for update in found:
            digest = hashlib.sha256(update.message).hexdigest()
            lines.append({"round": tasks[0].round, "client": update.client, "digest": digest})  # type: ignore[attr-defined]
        with self.path.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        return found


def test_hearing_what_was_noted_gives_the_model_of_the_run_that_noted_it(tmp_path: Path) -> None:
    there = list(rounds(Noted(Unreliable(local(), drop=0.4, seed=1), tmp_path / "answers")))  # type: ignore[arg-type]
    here = list(rounds(Heard(local(), answers_of(tmp_path / "answers"))))
    assert any("missing" in done.rejected for done in there)
    assert [done.rejected for done in here] == [done.rejected for done in there]
    assert all(torch.equal(value, here[-1].progress.params[name]) for name, value in there[-1].progress.params.items())


def test_an_answer_that_is_not_the_honest_one_is_not_heard(tmp_path: Path) -> None:
    list(rounds(Noted(local(), tmp_path / "answers")))  # type: ignore[arg-type]
    lines = (tmp_path / "answers").read_text().splitlines()
    noted = json.loads(lines[1])
    lines[1] = json.dumps(noted | {"digest": hashlib.sha256(b"a lie").hexdigest()})
    (tmp_path / "answers").write_text("\n".join(lines))
    first = next(rounds(Heard(local(), answers_of(tmp_path / "answers"))))
    assert (first.clients, first.rejected) == (4, {"missing": 1})


def test_of_a_round_that_was_repeated_only_the_last_time_counts(tmp_path: Path) -> None:
    lines = [
        {"round": 1},
        {"round": 1, "client": 2, "digest": "a"},
        {"round": 1},
        {"round": 1, "client": 3, "digest": "b"},
    ]
    (tmp_path / "answers").write_text("\n".join(map(json.dumps, lines)))
    assert answers_of(tmp_path / "answers") == {1: {3: {"b"}}}


@pytest.mark.parametrize("name", KINDS)
def test_a_run_with_parts_of_each_kind_is_stopped_and_continued_to_the_same_bits(name: str, tmp_path: Path) -> None:
    prepare()
    (tmp_path / "data").mkdir()
    assert stopped_and_continued(KINDS[name](tmp_path / "data"), 1, tmp_path / "runs", seed=5) == 1
