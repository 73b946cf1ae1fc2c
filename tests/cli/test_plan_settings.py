"""Plans, settings and commands: what is predicted is what is counted, and mistakes are one line and a code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from progfed import experiments
from progfed.cli import app, main
from progfed.cli.options import chosen
from progfed.cli.settings import override, scaled
from progfed.codec import Float, codec
from progfed.costs.phase import phase_cost
from progfed.errors import UsageError
from progfed.experiments.stages import PAPER
from progfed.models.resnet import resnet18
from progfed.recipe.rate import Constant, Cosine, PerStage, Restart
from progfed.recipe.turns import turn_at
from progfed.runs.directory import RunDirectory
from progfed.runs.plan import Known, plan, plans
from progfed.runs.train import run, train
from progfed.schedule import Phase, end_to_end, length, random
from tiny import tiny_experiment, tiny_recipe


def command(*arguments: str) -> tuple[int, str, str]:
    """A command as a user runs it: exit code, standard output, standard error."""
    done = subprocess.run([sys.executable, "-m", "progfed", *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


# --- plan -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sent", "paper_bytes", "flops"),
    [("emnist", 0.6701, 0.6708, 0.8186), ("cifar10", 0.7048, 0.7053, 0.8691)],
)
def test_the_papers_rows_without_warm_up_cost_what_was_derived(
    name: str, sent: float, paper_bytes: float, flops: float
) -> None:
    result = CliRunner().invoke(app, ["plan", "federated", "--run", name, "--warmup", "0", "--json"])
    (planned,) = json.loads(result.stdout)
    assert planned["relative"]["paper_bytes"] == pytest.approx(paper_bytes, abs=5e-5)
    assert planned["relative"]["flops"] == pytest.approx(flops, abs=5e-5)
    assert planned["relative"]["bytes"] == pytest.approx(sent, abs=2e-4)  # envelopes weigh a little
    assert set(planned) >= {"experiment", "run", "stages", "total", "relative"}
    wanted = {"stage", "rounds", "warmup_rounds", "parameters", "head_share"}
    wanted |= {"down_bytes", "up_bytes", "flops", "memory_bytes"}
    assert all(set(stage) >= wanted for stage in planned["stages"])


def test_the_published_accounting_gives_every_figure_of_table_12_to_the_gigabyte() -> None:
    known = Known()
    billed = {run.run: plan(run, known)["total"]["paper_bytes"] for run in experiments.load("stages")}
    assert {run: round(total / 1e9) for run, total in billed.items() if run != "end-to-end"} == {
        run: row.cost for run, row in PAPER.stage_counts.rows.items() if run != "end-to-end"
    }
    # the printed cost of the baseline is that of 2990 of its 3000 rounds
    assert round(billed["end-to-end"] * 2990 / 3000 / 1e9) == PAPER.stage_counts.rows["end-to-end"].cost


def test_costs_of_federated_cifar100_are_those_of_the_crops_it_is_trained_on() -> None:
    (run,) = experiments.select("federated", ["cifar100"])
    assert phase_cost(run.make_model(), Phase(4, 1)).flops == 1_872_850_944
    assert phase_cost(resnet18(), Phase(4, 1)).flops == 3_329_273_856


def test_a_seed_redraws_the_schedule_of_random_and_nothing_else() -> None:
    for one in experiments.load("cifar10"):
        other = scaled(one, rounds=None, warmup=None, seed=1).recipe.schedule
        assert (other != one.recipe.schedule) == (one.run == "random")
    (drawn,) = experiments.select("cifar10", ["random"])
    assert scaled(drawn, rounds=None, warmup=None, seed=0) == drawn
    assert scaled(drawn, rounds=8, warmup=None, seed=1).recipe.schedule == random(8, stages=4, seed=1)


@pytest.mark.parametrize("up", ["float", "LQ-8", "LQ-4", "SP-25", "TOP-10", "LQ-8+SP-25"])
def test_planned_bytes_are_the_bytes_that_the_run_counts(tmp_path: Path, up: str) -> None:
    recipe = tiny_recipe(up=codec(up), down=codec("LQ-8"))
    experiment = tiny_experiment(recipe=recipe)
    planned = plan(experiment)
    counted = run(experiment, tmp_path)["cost"]
    assert planned["exact"]
    for key in ("down_bytes", "up_bytes", "paper_bytes"):
        assert planned["total"][key] == counted[key]


def test_planned_flops_are_the_runs_where_clients_have_the_average_size(tmp_path: Path) -> None:
    data = tiny_experiment().data
    assert not callable(data)
    equal = replace(data, sizes=(5,) * 6, load=lambda index: data.client(index).take(slice(0, 5)))
    experiment = tiny_experiment(data=equal, clients=6, examples=30)
    assert plan(experiment)["total"]["flops"] == run(experiment, tmp_path)["cost"]["flops"]


def test_planned_memory_is_what_the_records_say_of_each_stage(tmp_path: Path) -> None:
    experiment = tiny_experiment()
    planned, summary = plan(experiment), run(experiment, tmp_path)
    records = RunDirectory(tmp_path).records()
    for stage in planned["stages"]:
        seen = [record["memory_bytes"] for record in records if record["stage"] == stage["stage"]]
        assert max(seen) == stage["memory_bytes"]
    assert summary["memory_bytes"] == planned["total"]["memory_bytes"] == planned["stages"][-1]["memory_bytes"]


def test_a_codec_without_a_fixed_length_is_planned_as_a_bound() -> None:
    assert plan(tiny_experiment())["exact"]
    assert not plan(tiny_experiment(recipe=tiny_recipe(up=Float(exact=False))))["exact"]


def test_lengths_that_depend_on_the_numbers_are_planned_as_a_bound_and_an_estimate(tmp_path: Path) -> None:
    base = tiny_experiment(run="floats")
    small = replace(base, run="small", baseline="floats", recipe=tiny_recipe(up=codec("DQ-3"), down=codec("DQ-1.5")))
    floats, planned = plans([base, small], [base, small])
    bound, estimate, counted = planned["total"], planned["estimate"], run(small, tmp_path)["cost"]
    assert "estimate" not in floats
    assert not planned["exact"]
    for key in ("down_bytes", "up_bytes"):
        assert counted[key] <= bound[key]
        assert estimate[key] <= bound[key] < floats["total"][key]
    relative = planned["relative"]
    both = estimate["down_bytes"] + estimate["up_bytes"]
    assert relative["estimated_bytes"] == both / (floats["total"]["down_bytes"] + floats["total"]["up_bytes"])


@pytest.mark.parametrize(("up", "told"), [("DQ-3", True), ("EDEN-1", False)])
def test_a_plan_shows_an_estimate_only_where_bytes_are_a_bound(up: str, told: bool) -> None:
    shown = (
        CliRunner()
        .invoke(app, ["plan", "demo", "--run", "end-to-end", "--set", f"up={up}"], env={"COLUMNS": "160"})
        .stdout
    )
    assert ("bytes are a bound that always holds" in shown) == told
    assert ("estimate of the bytes:" in shown) == told


def test_an_app_is_planned_whose_clients_alone_know_how_many_examples_they_have(tmp_path: Path) -> None:
    app_folder = tmp_path / "app"
    assert CliRunner().invoke(app, ["init", str(app_folder)]).exit_code == 0
    file = app_folder / "fedapp" / "experiment.py"
    declared = CliRunner().invoke(app, ["plan", str(file), "--json"])
    file.write_text(re.sub(r"    examples=.*\n", "", file.read_text()))
    undeclared = CliRunner().invoke(app, ["plan", str(file), "--json"])
    with_sizes, without = (json.loads(result.stdout)[0] for result in (declared, undeclared))
    assert without["one_example"]
    assert "one_example" not in with_sizes
    assert with_sizes["total"]["flops"] == 80 * without["total"]["flops"]
    assert "FLOPs of clients with one example each" in CliRunner().invoke(app, ["plan", str(file)]).stdout


def test_a_run_is_planned_against_its_baseline() -> None:
    base = tiny_experiment(run="x-end-to-end", recipe=tiny_recipe(schedule=end_to_end(9, stages=3)))
    ours = tiny_experiment(run="x", baseline="x-end-to-end")
    first, second = plans([base, ours], [base, ours])
    assert first["relative"] == {"bytes": 1.0, "paper_bytes": 1.0, "flops": 1.0, "memory": 1.0}
    sent = [plan["total"]["down_bytes"] + plan["total"]["up_bytes"] for plan in (first, second)]
    assert second["relative"]["bytes"] == sent[1] / sent[0]
    with pytest.raises(UsageError, match="baseline 'x-end-to-end' is not among the runs"):
        plans([ours], [ours])


# --- settings -------------------------------------------------------------------------------------------------------


def test_settings_are_found_by_path_or_by_its_end_and_keep_their_type() -> None:
    experiment = tiny_experiment()
    assert override(experiment, "epochs=7").recipe.local.epochs == 7
    assert override(experiment, "recipe.local.epochs=7").recipe.local.epochs == 7
    assert override(experiment, "rate.lr=0.5").recipe.rate.lr == 0.5  # type: ignore[attr-defined]
    assert override(experiment, "up=LQ-8").recipe.up.name == "LQ-8"
    assert override(experiment, "server=fedadam").recipe.server != experiment.recipe.server
    assert override(experiment, "weighting=uniform").recipe.weighting == "uniform"


@pytest.mark.parametrize("name", experiments.NAMES)
def test_the_rate_is_set_in_the_same_way_whatever_its_shape(name: str) -> None:
    for experiment in experiments.load(name):
        recipe = override(experiment, "rate.lr=0.05").recipe
        first = turn_at(end_to_end(length(recipe.schedule), stages=recipe.schedule[-1].stage), 1)
        assert first is not None
        assert recipe.rate(first.moment) == pytest.approx(0.05)  # that of the full model


def test_rates_of_stages_keep_their_proportions_or_are_set_one_by_one() -> None:
    staged = tiny_experiment(recipe=tiny_recipe(rate=PerStage((Constant(0.4), Restart(Cosine(0.2))))))
    both = PerStage((Constant(0.1), Restart(Cosine(0.05))))
    assert override(staged, "lr=0.05").recipe.rate == override(staged, "rate.lr=0.05").recipe.rate == both
    one = override(staged, "rates.0.lr=0.3").recipe.rate
    assert one == PerStage((Constant(0.3), Restart(Cosine(0.2))))
    assert override(staged, "floor=0.01").recipe.rate == PerStage((Constant(0.4), Restart(Cosine(0.2, 0.01))))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rate.lr=-1", "a learning rate is a finite number of 0 or more, not -1.0"),
        ("rate.lr=nan", "a learning rate is a finite number of 0 or more, not nan"),
        ("cohort=0", "a cohort is a whole number of 1 or more clients, not 0"),
        ("momentum=2", "momentum is 0 to below 1, not 2.0"),
        ("weight_decay=inf", "weight_decay is a finite number of 0 or more, not inf"),
        ("evaluate_every=0", "evaluated every 1 or more rounds, not every 0"),
        ("epoch=2", "no key 'epoch': did you mean .*epochs"),
        ("epochs", "key=value"),
        ("epochs=two", "takes a value like 2, not 'two'"),
        ("up=LQ-3", "LQ-3"),
        ("server=sgd", "takes one of fedavg"),
        ("epochs=0", "at least 1 epoch"),
        ("weighting=some", "weighting"),
        ("name=other", "no key 'name'"),
    ],
)
def test_a_wrong_setting_is_one_clear_error(setting: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        override(tiny_experiment(), setting)


def test_scaling_keeps_proportions() -> None:
    experiment = scaled(experiments.select("federated", ["emnist"])[0], rounds=150, warmup=None, seed=5)
    assert [(p.stage, p.rounds, p.warmup) for p in experiment.recipe.schedule] == [
        (1, 25, False),
        (2, 1, True),
        (2, 25, False),
        (3, 1, True),
        (3, 100, False),
    ]
    assert experiment.recipe.seed == 5


def test_a_run_that_is_longer_or_shorter_than_its_baseline_stays_so() -> None:
    named = {run.run: length(run.recipe.schedule) for run in chosen("stages", [], 300, None, None, None)}
    assert (named["end-to-end"], named["s8"], named["s8-4000"]) == (300, 300, 400)
    (alone,) = chosen("cifar10", ["equal-bytes"], 64, None, None, None)
    assert length(alone.recipe.schedule) == 46


# --- commands -------------------------------------------------------------------------------------------------------

OWN = """
import torch
from torch import nn
import progfed

torch.manual_seed(0)
draw = lambda n: (torch.randn(n, 6), torch.randint(0, 3, (n,)))
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
model = progfed.split(net, stages=2, example=torch.zeros(1, 6))
data = progfed.from_clients([draw(8) for _ in range(4)], test=draw(20), classes=3)
recipe = progfed.Recipe(schedule=progfed.progressive(4, stages=2), cohort=2)
EXPERIMENT = progfed.Experiment(name="own", model=model, data=data, recipe=recipe)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def test_a_users_own_file_plans_runs_continues_and_reports(own: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "run-seed0"
    code, text, _ = command("plan", str(own), "--json")
    assert code == 0
    planned = json.loads(text)[0]["total"]
    code, text, log = command("run", str(own), "--run", "run", "--out", str(out.parent), "--workers", "1", "--json")
    assert code == 0
    assert json.loads(text)[0]["cost"]["down_bytes"] == planned["down_bytes"]
    assert len(log.splitlines()) == 4  # one plain line per round where there is no terminal
    assert RunDirectory(out).read("summary.json") == json.loads(text)[0]
    code, _, log = command("run", str(own), "--out", str(out.parent))  # naming the only run changes nothing
    assert (code, log) == (0, "")
    assert [path.name for path in out.parent.iterdir()] == ["run-seed0"]
    code, text, _ = command("report", str(out), "--out", str(tmp_path / "report"))
    assert code == 0
    assert (tmp_path / "report" / "report.html").exists()


def test_fresh_moves_the_old_run_aside(own: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for arguments in ([], ["--rounds", "2", "--fresh"]):
        assert command("run", str(own), "--out", str(out), "--workers", "1", *arguments)[0] == 0
    assert RunDirectory(out / "run-seed0").read("summary.json")["rounds"] == 2  # type: ignore[index]
    assert RunDirectory(out / "run-seed0.old1").read("summary.json")["rounds"] == 4  # type: ignore[index]


def test_a_run_that_an_older_version_put_into_out_itself_is_continued_there(own: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (experiment,) = experiments.load(str(own))
    next(train(experiment, out, data=tmp_path))
    assert command("run", str(own), "--out", str(out), "--workers", "1")[0] == 0
    assert RunDirectory(out).read("summary.json")["rounds"] == 4  # type: ignore[index]
    assert command("run", str(own), "--out", str(out), "--workers", "1", "--seed", "1")[0] == 0
    assert RunDirectory(out / "run-seed1").read("summary.json")["seed"] == 1  # type: ignore[index]


def test_after_a_refused_command_the_corrected_one_runs(own: Path, tmp_path: Path) -> None:
    arguments = ["run", str(own), "--out", str(tmp_path / "out"), "--workers", "1"]
    assert command(*arguments, "--set", "cohort=9")[0] == 2
    assert command(*arguments)[0] == 0


CASES: list[tuple[list[str], int, str]] = [
    (["run", "nosuch"], 2, "no experiment 'nosuch'"),
    (["run", "nosuch.py"], 2, "no file nosuch.py"),
    (["plan", "federated", "--run", "nosuch"], 2, "has no run 'nosuch'"),
    (["run", "OWN", "--set", "epoch=2"], 2, "no key 'epoch'"),
    (["run", "OWN", "--rounds", "1"], 2, "1 rounds are too few for 2 stages"),
    (["run", "OWN", "--set", "cohort=9"], 2, "a cohort of 9 clients cannot be drawn from 4"),
    (["run", "OWN", "--set", "rate.lr=1e39"], 4, "not finite"),
    (["run", "OWN", "--device", "tpu"], 2, "a device is 'cpu' or 'cuda', not 'tpu'"),
    (["run", "OWN", "--device", "cuda", "--engine", "flower"], 2, "--device is for the local engine"),
    (["run", "federated", "--run", "cifar10", "--data", "nowhere"], 3, "cifar"),
    (["run", "OWN", "--out", "FILE/below"], 5, "cannot be written"),
    (["run", "OWN", "--out", "FILE"], 5, "--out FILE is a file: give a folder"),
    (["demo", "--out", "FILE"], 5, "--out FILE is a file: give a folder"),
    (["run", "OWN", "--data", "FILE"], 3, "--data FILE is a file: give the folder that holds the data sets"),
    (["data", "list", "--data", "FILE"], 3, "--data FILE is a file"),
    (["run", "OWN", "--rounds", "-5"], 2, "--rounds takes 1 or more, not -5"),
    (["plan", "demo", "--rounds", "0"], 2, "--rounds takes 1 or more, not 0"),
    (["inspect", "own.py:model", "--stages", "0"], 2, "--stages takes 1 or more, not 0"),
    (["inspect", "own.py:model", "--rounds", "0"], 2, "--rounds takes 1 or more, not 0"),
    (["plan", "demo", "--set", "cohort=1000"], 2, "a cohort of 1000 clients cannot be drawn from 50"),
    (["run", "OWN", "--set", "rate.lr=-1"], 2, "a learning rate is a finite number of 0 or more, not -1.0"),
    (["run", "OWN", "--set", "momentum=2"], 2, "momentum is 0 to below 1"),
    (["run", "FOLDER.py"], 2, "FOLDER.py is a folder"),
    (["run", "binary.py"], 2, "binary.py cannot be loaded: SyntaxError"),
    (["run", "three.py"], 2, "EXPERIMENT = progfed.Experiment(…), or RUNS = (…, …), not 3"),
    (["run", f"{'x' * 300}.py"], 5, "cannot be used: File name too long"),
    (["inspect", f"{'x' * 300}.py:net"], 5, "cannot be used: File name too long"),
    (["report", "nowhere"], 2, "nowhere"),
]


@pytest.mark.parametrize(("arguments", "expected", "message"), CASES, ids=[" ".join(case[0]) for case in CASES])
def test_a_mistake_is_one_line_and_a_documented_exit_code(
    own: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    expected: int,
    message: str,
) -> None:
    (tmp_path / "FILE").write_text("")
    (tmp_path / "FOLDER.py").mkdir()
    (tmp_path / "binary.py").write_bytes(b"\x00\xff")
    (tmp_path / "three.py").write_text("EXPERIMENT = 3")
    monkeypatch.chdir(tmp_path)
    filled = [str(own) if argument == "OWN" else argument for argument in arguments]
    monkeypatch.setattr(sys, "argv", ["progfed", *filled])
    with pytest.raises(SystemExit) as stopped:
        main()
    errors = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("own/run round")]
    assert stopped.value.code == expected
    assert len(errors) == 1
    assert errors[0].startswith("progfed: ")
    assert message in errors[0]


def test_a_file_that_does_not_load_says_why(tmp_path: Path) -> None:
    for text, message in (("1/0", "ZeroDivisionError"), ("x = 1", "must define EXPERIMENT")):
        (tmp_path / "bad.py").write_text(text)
        with pytest.raises(UsageError, match=message):
            experiments.load(str(tmp_path / "bad.py"))


def test_every_experiment_is_listed_and_has_its_baseline() -> None:
    result = CliRunner().invoke(app, ["list", "--json"])
    listed = json.loads(result.stdout)
    assert {row["experiment"] for row in listed} == set(experiments.NAMES)
    for name in experiments.NAMES:
        runs: dict[str, Any] = {experiment.run: experiment for experiment in experiments.load(name)}
        for experiment in runs.values():
            if experiment.baseline:
                assert runs[experiment.baseline].baseline == ""
                assert runs[experiment.baseline].recipe.schedule == end_to_end(
                    length(runs[experiment.baseline].recipe.schedule),
                    stages=runs[experiment.baseline].make_model().stages,
                )


def commands(group: Any, *path: str) -> list[list[str]]:
    """The words of every command, the groups among them."""
    below = getattr(group, "commands", {})
    return [list(path), *(words for name, one in below.items() for words in commands(one, *path, name))]


@pytest.mark.parametrize("arguments", commands(get_command(app)), ids=" ".join)
def test_every_command_has_help(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, [*arguments, "--help"])
    assert result.exit_code == 0
    assert "Usage" in result.stdout
    assert "\\[" not in result.stdout


def test_names_cannot_steer_the_terminal(own: Path, tmp_path: Path) -> None:
    own.write_text(own.read_text().replace('name="own"', 'name="o[red]w\\x1b[2Jn", run="\\x1b]0;r"'))
    told = "".join(map(str, command("plan", str(own)) + command("inspect", str(own))))
    told += "".join(map(str, command("run", str(own), "--out", str(tmp_path / "out"), "--workers", "1")))
    told += "".join(map(str, command("run", str(own), "--run", "\x1b[2J")))
    assert "o[red]w�[2Jn" in told
    assert "\x1b" not in told


def test_two_rounds_of_the_demo_make_a_report(tmp_path: Path) -> None:
    code, text, _ = command("demo", "--rounds", "3", "--out", str(tmp_path), "--workers", "2", "--json")
    assert code == 0
    shown = json.loads(text)
    assert Path(shown["report"]).exists()
    baseline, progressive, equal, small = (run["cost"]["down_bytes"] for run in shown["runs"])
    assert 0 < small < progressive <= equal < baseline
    (told,) = shown["comparison"]["beside"]
    assert told["run"] == "small-messages"
    assert told["bytes"] <= 0.02 * shown["comparison"]["end_to_end"]["bytes"]
    assert "small-messages" in shown["comparison"]["sentence"]
    assert shown["comparison"]["sentence"].startswith("At equal bytes ")


def test_the_limit_of_steps_is_a_number_or_none() -> None:
    limited = override(tiny_experiment(), "local.steps=3")
    assert limited.recipe.local.steps == 3
    assert override(limited, "local.steps=none").recipe.local.steps is None
    assert override(limited, "accumulate=2").recipe.local.accumulate == 2
    with pytest.raises(UsageError, match=r"--set recipe.local.steps takes a value like 1, not '0.5'"):
        override(limited, "local.steps=0.5")


def test_the_clipping_norm_is_a_number_or_none() -> None:
    experiment = tiny_experiment()
    assert override(experiment, "local.clip=2").recipe.local.clip == 2.0
    without = override(experiment, "local.clip=none")
    assert without.recipe.local.clip is None
    assert override(without, "local.clip=0.5").recipe.local.clip == 0.5
    with pytest.raises(UsageError, match="takes a value like"):
        override(without, "local.clip=much")
