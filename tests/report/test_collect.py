"""Folders become runs: whole, half-finished, damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from progfed.errors import ProgfedError, StorageError, UsageError
from progfed.report.collect import collect, read_run

from .report_runs import lines, stopped, tiny


def test_every_point_is_its_line_of_the_records(trained: Path) -> None:
    found = collect([trained])
    assert len(found.runs) == 4
    assert found.problems == ()
    for run in found.runs:
        for point, line in zip(run.points, lines(run.path), strict=True):
            total = line["total"]
            assert (point.round, point.stage, point.warmup, point.metric) == (
                line["round"],
                line["stage"],
                line["warmup"],
                line["metric"],
            )
            assert point.bytes == total["down_bytes"] + total["up_bytes"]
            assert (point.paper_bytes, point.flops, point.seconds) == (
                total["paper_bytes"],
                total["flops"],
                total["seconds"],
            )


def test_a_run_knows_its_seed_its_baseline_and_its_rounds(trained: Path) -> None:
    run = read_run(trained / "lin-seed2", [])
    assert (run.experiment, run.name, run.baseline, run.seed) == ("tiny", "lin", "lin-end-to-end", 2)
    assert (run.budget, run.planned, run.metric, run.finished) == (8, 9, "accuracy", True)


def test_a_stopped_run_is_found_with_the_rounds_it_has(tmp_path: Path) -> None:
    stopped(tiny(), tmp_path / "half", 3)
    (run,) = collect([tmp_path]).runs
    assert len(run.points) == 3
    assert not run.finished


def test_the_same_folder_given_twice_counts_once(trained: Path) -> None:
    assert len(collect([trained, trained / "lin-seed1", trained]).runs) == 4


def test_what_fresh_moved_aside_is_left_out_and_named(runs: Path) -> None:
    (runs / "lin-seed1").rename(runs / "lin-seed1.old1")
    found = collect([runs])
    assert len(found.runs) == 3
    assert any("lin-seed1.old1" in problem for problem in found.problems)
    assert len(collect([runs / "lin-seed1.old1"]).runs) == 1


def test_a_damaged_run_is_named_and_the_others_are_reported(runs: Path) -> None:
    rounds = runs / "lin-seed1" / "rounds.jsonl"
    rounds.write_bytes(rounds.read_bytes().replace(b'"stage"', b'"st'))
    found = collect([runs])
    assert len(found.runs) == 3
    assert any("lin-seed1" in problem and "damaged" in problem for problem in found.problems)


def test_records_cut_at_any_byte_give_the_whole_lines_before(runs: Path) -> None:
    rounds = runs / "lin-seed1" / "rounds.jsonl"
    whole = rounds.read_bytes()
    for end in range(0, len(whole), 7):
        rounds.write_bytes(whole[:end])
        assert len(read_run(runs / "lin-seed1", []).points) == whole[:end].count(b"\n")


def test_a_damaged_summary_makes_a_run_unfinished(runs: Path) -> None:
    (runs / "lin-seed1" / "summary.json").write_text("{")
    problems: list[str] = []
    assert not read_run(runs / "lin-seed1", problems).finished
    assert "summary.json" in problems[0]


def refusal(folder: Path) -> ProgfedError | None:
    try:
        read_run(folder, [])
    except ProgfedError as error:
        return error
    return None


JUNK = st.one_of(st.none(), st.text(max_size=5), st.floats(), st.lists(st.integers(), max_size=2), st.just({}))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(["round", "stage", "warmup", "metric", "total"]), junk=JUNK)
def test_any_value_in_a_record_is_read_or_refused_by_name(runs: Path, key: str, junk: object) -> None:
    folder = runs / "lin-seed1"
    changed = lines(folder)
    changed[1][key] = junk
    (runs / "changed").mkdir(exist_ok=True)
    shutil.copy(folder / "experiment.json", runs / "changed")
    (runs / "changed" / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in changed))
    assert refusal(runs / "changed") is None or "changed" in str(refusal(runs / "changed"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.sampled_from(["name", "run", "baseline", "recipe", "metric", "model", "data"]), junk=JUNK)
def test_any_value_in_a_description_is_read_or_refused_by_name(runs: Path, key: str, junk: object) -> None:
    described = json.loads((runs / "lin-seed1" / "experiment.json").read_text())
    (runs / "changed").mkdir(exist_ok=True)
    (runs / "changed" / "experiment.json").write_text(json.dumps(described | {key: junk}))
    assert refusal(runs / "changed") is None or "changed" in str(refusal(runs / "changed"))


def test_a_folder_without_a_run_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"no run can be read in .*: give the folder of a `progfed run`"):
        collect([tmp_path])


def test_a_folder_with_only_damaged_runs_says_why(runs: Path) -> None:
    for folder in runs.iterdir():
        (folder / "experiment.json").write_text("[]")
    with pytest.raises(StorageError, match="does not hold a JSON object"):
        collect([runs])


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no folder"):
        collect([tmp_path / "absent"])


def test_names_are_shown_without_control_characters(edited, runs: Path) -> None:  # type: ignore[no-untyped-def]
    edited("lin-seed1", lambda described: described.update(run="a\x1b[31mb\nc"))
    assert read_run(runs / "lin-seed1", []).name == "a�[31mb c"
