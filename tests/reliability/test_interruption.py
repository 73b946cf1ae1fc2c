"""Killed, unplugged, out of disk, interrupted: the run ends with the same bits as if nothing had happened."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from reliability.cases import outcome, plain, population
from reliability.interrupts import interruptions
from reliability.kills import POINTS, finish, forked, point_kills, random_kills
from reliability.power import File, Folder, power_losses, recording, replay, survive
from reliability.storage import full_disks, read_only
from typer.testing import CliRunner

from progfed import files
from progfed.cli import app, main
from progfed.engines.local import LocalEngine
from progfed.errors import DataError, MessageError, ProgfedError, StorageError, TrainingError, UsageError
from progfed.flower.federation.processes import start_time
from progfed.population import Examples
from progfed.runs import checkpoint
from progfed.runs.directory import RunDirectory, opened
from progfed.runs.identity import describe
from progfed.runs.train import run
from progfed.server.loop import federate
from progfed.wire.engine import ClientState, Task, Update
from reliability import workspace


@pytest.fixture
def folder() -> Iterator[Path]:
    with workspace() as made:
        yield made


def test_twenty_kills_at_random_moments_change_nothing(folder: Path) -> None:
    assert random_kills(20, folder, seed=0) == 20


def test_death_at_every_named_point_changes_nothing(folder: Path) -> None:
    assert point_kills(folder) == len(POINTS)


def test_power_lost_after_any_operation_leaves_the_committed_state_or_a_later_one(folder: Path) -> None:
    assert power_losses(200, folder, seed=0) == 200


def test_a_full_disk_is_one_clear_error_and_the_run_continues_when_there_is_room(folder: Path) -> None:
    assert full_disks(3, folder, seed=0) == 3


def test_a_folder_that_may_not_be_written_is_named_and_left_alone(folder: Path) -> None:
    assert "cannot be written (Permission denied)" in read_only(folder)


def test_ctrl_c_once_twice_and_sigterm_exit_with_130_and_lose_nothing(folder: Path) -> None:
    assert interruptions(8, folder, main, seed=0) == 8


def test_a_disk_that_is_really_full_is_told_apart_from_one_that_is_locked(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match=r"No space left on device\): free some space"),
        files.storing(tmp_path),
        open("/dev/full", "wb", buffering=0) as full,
    ):
        full.write(b"x")


def test_the_simulated_disk_forgets_what_was_not_synced(tmp_path: Path) -> None:
    events = [("create", "a"), ("write", "a", b"12"), ("fsync", "a"), ("fsync", "."), ("write", "a", b"34")]
    survive(replay(events), tmp_path / "one", Random(0), 0.0)
    assert (tmp_path / "one" / "a").read_bytes() == b"12"
    survive(replay(events[:3]), tmp_path / "two", Random(0), 0.0)
    assert list((tmp_path / "two").iterdir()) == []
    moved = replay([*events, ("rename", "a", "b")])
    assert set(moved.now) == {"b"}
    assert set(moved.safe) == {"a"}
    assert isinstance(moved.now["b"], File)
    assert moved.now["b"].now == b"1234"


def test_the_recorded_trace_replays_to_the_folder_that_the_run_left(folder: Path) -> None:
    with recording(folder / "run") as trace:
        finish(plain(), folder / "run")

    def compare(node: Folder, path: Path) -> None:
        assert set(node.now) == {entry.name for entry in path.iterdir()}
        for name, child in node.now.items():
            if isinstance(child, Folder):
                compare(child, path / name)
            else:
                assert child.now == (path / name).read_bytes()

    compare(replay(trace.events), folder / "run")


def test_a_damaged_later_checkpoint_does_not_push_out_a_valid_one(tmp_path: Path) -> None:
    def saved(number: int) -> None:
        checkpoint.save(tmp_path, checkpoint.Checkpoint(number, {"model": {}}, {}))

    for number in (5, 9):
        saved(number)
    (tmp_path / "round-00000009" / "manifest.json").write_text("{}")
    assert checkpoint.load(tmp_path).round == 5  # type: ignore[union-attr]
    saved(6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-00000005", "round-00000006"]


def test_a_start_that_died_before_its_first_file_was_in_place_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / ".experiment.json.writing").write_text('{"half a fi')
    made = plain()
    with opened(tmp_path) as directory:
        directory.claim(describe(made.experiment))
    assert RunDirectory(tmp_path).read("experiment.json") == describe(made.experiment)


def test_a_worker_that_outlives_a_killed_run_does_not_keep_the_folder_locked(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    running = fork.Event()
    with opened(tmp_path):
        worker = fork.Process(target=lambda: (running.set(), time.sleep(600)))
        worker.start()
        assert running.wait(60)
        with pytest.raises(StorageError, match="another process"), opened(tmp_path):
            pass
    try:
        with opened(tmp_path):
            pass
    finally:
        worker.kill()
        worker.join()


def training_for_ever(folder: Path) -> LocalEngine:
    """An engine whose two workers are in the middle of a client, and have left their numbers in the folder."""

    def load(client: int) -> Examples:
        (folder / str(os.getpid())).touch()
        time.sleep(90)  # longer than anybody waits here
        raise AssertionError("nobody waits for this")

    made = plain().experiment
    data = replace(population((6,)), load=load)
    engine = LocalEngine(made.make_model(), data, made.recipe, workers=2)
    tasks: list[Task] = []

    class Handing:
        client_states: dict[int, ClientState] = engine.client_states

        def __call__(self, asked: Sequence[Task]) -> list[Update]:
            tasks.extend(asked)
            return []

    with pytest.raises(TrainingError, match="no reply"):
        next(federate(made.make_model(), data.sizes, made.recipe, Handing()))
    for line, task in zip(engine._lines.values(), tasks, strict=False):
        line.train([(task, {})])
    wait_until(lambda: len(list(folder.iterdir())) == 2)
    return engine


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 45
    while not holds():
        assert time.monotonic() < end, "it has not come"
        time.sleep(0.02)


def test_workers_in_the_middle_of_a_client_end_with_a_run_that_was_killed(folder: Path) -> None:
    (folder / "workers").mkdir()

    def die() -> None:
        with training_for_ever(folder / "workers"):  # not closed, nor collected, when death comes
            os.kill(os.getpid(), signal.SIGKILL)

    assert forked(die, notes=folder / "notes") == -signal.SIGKILL
    wait_until(lambda: not any(start_time(int(path.name)) for path in (folder / "workers").iterdir()))


def test_a_program_that_never_closes_its_engine_ends_and_its_workers_with_it(folder: Path) -> None:
    (folder / "workers").mkdir()
    kept: list[LocalEngine] = []
    assert forked(lambda: kept.append(training_for_ever(folder / "workers")), notes=folder / "notes", seconds=60) == 0
    wait_until(lambda: not any(start_time(int(path.name)) for path in (folder / "workers").iterdir()))


@pytest.mark.parametrize(
    "error", [UsageError, DataError, TrainingError, StorageError, MessageError], ids=lambda error: error.__name__
)
def test_every_exit_code_is_documented_in_one_place_and_in_the_help(error: type[ProgfedError]) -> None:
    documented = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text()
    said = CliRunner().invoke(app, ["--help"]).output
    for code in (0, 1, error.exit_code, 130):
        assert f"\n| {code} | " in documented
        assert re.search(rf"\b{code}\s+[a-z]", said)


def test_settings_that_came_later_leave_the_identity_of_older_runs_alone(tmp_path: Path) -> None:
    described = describe(plain().experiment)["recipe"]
    assert not {"aggregate", "privacy", "over_selection", "deadline"} & described.keys()
    assert describe(plain(over_selection=1.3).experiment)["recipe"]["over_selection"] == 1.3


def test_an_outcome_tells_runs_apart(tmp_path: Path) -> None:
    for seed, name in ((1, "a"), (1, "b"), (2, "c")):
        run(plain(seed=seed).experiment, tmp_path / name)
    assert outcome(tmp_path / "a") == outcome(tmp_path / "b") != outcome(tmp_path / "c")
