"""`progfed analyse` and `progfed theorem` as a user runs them, and the report that follows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from progfed.analysis import discrepancy
from progfed.cli import app
from progfed.errors import StorageError, UsageError
from progfed.report import make_report, write_report
from progfed.runs.train import train
from tiny import tiny_experiment

SOURCE = "from tiny import tiny_experiment\nEXPERIMENT = tiny_experiment()\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a user's own file that kept its models, analysed by the command."""
    root = tmp_path_factory.mktemp("analyse")
    (root / "mine.py").write_text(SOURCE)
    for _ in train(tiny_experiment(), root / "runs" / "one", data=root, keep_every=2):
        pass
    arguments = ["analyse", str(root / "runs"), "--experiment", str(root / "mine.py"), "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    (done,) = json.loads(result.stdout[result.stdout.index("[\n") :])  # progress, on standard error, comes before
    assert done["files"] == [str(root / "runs/one/discrepancy.jsonl")]
    return root / "runs" / "one"


def test_every_kept_model_is_measured_once(run: Path) -> None:
    found = discrepancy.read(run)
    kept = [int(path.stem.removeprefix("round-")) for path in sorted((run / "models").iterdir())]
    assert [one.round for one in found] == kept


def test_the_report_shows_them_in_a_table_and_a_figure(run: Path, tmp_path: Path) -> None:
    report = make_report([run])
    table = next(table for table in report.tables(report.studies[0]) if "norm discrepancy" in table.title)
    assert [row[1] for row in table.rows] == ["1", "2", "3"]
    assert table.rows[-1][3:] == ("1", "1", "1", "1")
    written = {path.name for path in write_report([run], tmp_path)}
    assert "tiny-discrepancy.svg" in written
    drawn = (tmp_path / "tiny-discrepancy.svg").read_text()
    known = [one for one in discrepancy.read(run) if one.q is not None]
    assert drawn.count("<circle") == len(known) + sum(one.alpha is not None for one in discrepancy.read(run))
    assert drawn.split("\n", 1)[1] in (tmp_path / "report.html").read_text()


def test_a_run_of_an_unknown_experiment_needs_its_file(run: Path) -> None:
    with pytest.raises(UsageError, match=r"give --experiment FILE\.py"):
        CliRunner().invoke(app, ["analyse", str(run)], catch_exceptions=False)


def test_another_model_than_the_runs_is_refused(run: Path, tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(
        "from dataclasses import replace\nfrom tiny import tiny_experiment, tiny_model\n"
        "EXPERIMENT = tiny_experiment(model=replace(tiny_model(), name='other'))\n"
    )
    with pytest.raises(UsageError, match="trained with another model"):
        CliRunner().invoke(
            app, ["analyse", str(run), "--experiment", str(tmp_path / "other.py")], catch_exceptions=False
        )


def test_a_run_without_models_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    going = train(tiny_experiment(), tmp_path / "run", data=tmp_path)
    next(going)
    going.close()  # type: ignore[attr-defined]
    result = CliRunner().invoke(app, ["analyse", str(tmp_path / "run"), "--experiment", str(tmp_path / "mine.py")])
    assert result.exit_code == 0
    assert "train with --keep N" in result.output


def test_a_folder_without_a_run_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no run in"):
        CliRunner().invoke(app, ["analyse", str(tmp_path)], catch_exceptions=False)


def test_the_theorem_holds_and_a_wrong_step_breaks_it() -> None:
    asked = ["theorem", "--rounds", "60", "--runs", "40", "--longest", "1000"]
    found = json.loads(CliRunner().invoke(app, [*asked, "--json"]).stdout)
    assert [bound["holds"] for bound in found["bounds"].values()] == [True, False, True]
    assert found["rate"]["rounds"] == [100, 316, 1000]
    *bounds, over = CliRunner().invoke(app, asked).stdout.splitlines()
    told = ["violated" if "): violated" in line else "holds" for line in bounds]
    assert told == ["holds", "violated", "holds"]
    assert "errors over T = 100, 316, 1000 fall as T to the power of" in over


def test_a_slope_needs_two_numbers_of_iterations() -> None:
    result = CliRunner().invoke(app, ["theorem", "--rounds", "3", "--runs", "2", "--longest", "200"])
    assert isinstance(result.exception, UsageError)
    assert "at least 316, or 0" in str(result.exception)
