"""Differential privacy: the sum is bounded, the noise is what was asked for, and what is spent is known and kept."""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from progfed import server
from progfed.aggregate import Median, l2
from progfed.chaos.cases import normed, outcome, plain, population
from progfed.engines.local import LocalEngine
from progfed.errors import UsageError
from progfed.experiment import run, train
from progfed.federate import federate
from progfed.identity import describe, identity
from progfed.privacy import Privacy
from progfed.records import RunDirectory
from progfed.tensors import Tensors

PRIVACY = Privacy(clip=1.0, noise=0.8)


def updates(number: int, *, size: int = 4000, scale: float = 5.0) -> list[tuple[float, Tensors]]:
    draw = torch.Generator().manual_seed(7)
    return [(1.0, {"w": scale * torch.randn(size, generator=draw)}) for _ in range(number)]


def released(privacy: Privacy, given: list[tuple[float, Tensors]], *, cohort: int = 4, number: int = 1) -> Tensors:
    return privacy.release(given, cohort=cohort, seed=0, number=number)


def test_the_noise_has_the_deviation_that_was_asked_for() -> None:
    quiet, loud = Privacy(clip=2.0, noise=1e-9), Privacy(clip=2.0, noise=0.7)
    given = updates(4, size=200_000)
    noise = released(loud, given)["w"] - released(quiet, given)["w"]
    wanted = 0.7 * 2.0 / 4
    assert noise.std().item() == pytest.approx(wanted, rel=0.01)
    assert abs(noise.mean().item()) < 5 * wanted / math.sqrt(200_000)


def test_one_client_moves_the_result_by_no_more_than_the_norm_over_the_cohort() -> None:
    quiet, given = Privacy(clip=1.0, noise=1e-9), updates(4)
    without = {name: value - released(quiet, given)[name] for name, value in released(quiet, given[:3]).items()}
    assert l2(without) <= 1.0 / 4 * (1 + 1e-4)


def test_who_is_missing_does_not_change_the_denominator() -> None:
    quiet = Privacy(clip=1e9, noise=1e-18)
    given = [(5.0, {"w": torch.tensor([8.0])}), (1.0, {"w": torch.tensor([4.0])})]
    assert released(quiet, given)["w"].item() == pytest.approx(3.0)


def test_with_per_parameter_the_noise_on_a_coordinate_is_the_same_at_every_stage() -> None:
    adaptive = Privacy(clip=0.01, noise=1.0, per_parameter=True)
    assert adaptive.bound(400) == pytest.approx(2 * adaptive.bound(100))
    small, large = (adaptive.bound(size) / math.sqrt(size) for size in (100, 10_000))
    assert small == pytest.approx(large) == pytest.approx(0.01)
    assert Privacy(clip=1.0, noise=1.0).bound(100) == Privacy(clip=1.0, noise=1.0).bound(10_000) == 1.0


def test_a_repeated_round_draws_the_same_noise_only_for_the_same_sum() -> None:
    given = updates(3)
    first, again = (released(PRIVACY, given) for _ in range(2))
    assert torch.equal(first["w"], again["w"])
    fewer = released(PRIVACY, given[:2])["w"] - first["w"]
    fresh = math.sqrt(2) * 0.8 / 4  # the noise of both is in the difference
    assert fewer.std().item() == pytest.approx(fresh, rel=0.1)


def test_the_secret_changes_cohorts_and_noise_and_is_not_written_down() -> None:
    hidden = Privacy(clip=1.0, noise=0.8, secret="only the server knows")
    assert not torch.equal(released(hidden, updates(3))["w"], released(PRIVACY, updates(3))["w"])
    open_, secret = (plain(privacy=p, weighting="uniform").experiment for p in (PRIVACY, hidden))
    drawn = [[experiment.recipe.draw(100, number) for number in range(5)] for experiment in (open_, secret)]
    assert drawn[0] != drawn[1]
    assert "only the server knows" not in str(describe(secret)) + repr(secret)
    assert identity(open_) != identity(secret)


def test_epsilon_agrees_with_the_closed_form_where_everybody_takes_part() -> None:
    """Without sampling a round is a Gaussian mechanism: RDP of order a is a / (2 z^2), here with z halved."""
    rounds, delta, z = 10, 1e-5, 4.0
    spent = Privacy(clip=1.0, noise=z, delta=delta).spent(rounds, clients=8, asked=8)
    rho = rounds / (2 * (z / 2) ** 2)
    classic = rho + 2 * math.sqrt(rho * math.log(1 / delta))  # the conversion of zero-concentrated privacy
    assert 0.8 * classic < spent <= classic


def test_epsilon_grows_with_rounds_and_shrinks_with_noise_and_sampling() -> None:
    base = PRIVACY.spent(10, clients=1000, asked=10)
    assert base < PRIVACY.spent(20, clients=1000, asked=10)
    assert base < PRIVACY.spent(10, clients=1000, asked=100)
    assert base > Privacy(clip=1.0, noise=2.0).spent(10, clients=1000, asked=10)
    assert base == Privacy(clip=77.0, noise=0.8).spent(10, clients=1000, asked=10)


def test_the_privacy_spent_is_in_the_record_and_survives_a_resume(tmp_path: Path) -> None:
    case = plain(privacy=PRIVACY, weighting="uniform")
    run(case.experiment, tmp_path / "whole")
    for record in train(case.experiment, tmp_path / "cut", data=tmp_path):
        if record["round"] == 3:
            break
    run(case.experiment, tmp_path / "cut", workers=2)
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")
    spent = [record["epsilon"] for record in RunDirectory(tmp_path / "cut").records()]
    assert spent == sorted(spent)
    assert spent == [PRIVACY.spent(number, clients=5, asked=3) for number in range(1, 8)]


def test_a_run_without_privacy_has_no_epsilon(tmp_path: Path) -> None:
    run(plain().experiment, tmp_path)
    assert all("epsilon" not in record for record in RunDirectory(tmp_path).records())


def test_a_growth_only_adds_names_and_every_round_costs_the_same() -> None:
    experiment = plain(privacy=Privacy(clip=1.0, noise=1e-6), weighting="uniform", server=server.fedavg()).experiment
    data = population((6,))
    with LocalEngine(experiment.make_model(), data, experiment.recipe) as engine:
        done = list(federate(experiment.make_model(), data.sizes, experiment.recipe, engine))
    assert {round_.phase.stage for round_ in done} == {1, 2, 3}
    for before, after in pairwise(done):
        moved = {
            name: value - before.progress.params[name]
            for name, value in after.progress.params.items()
            if name in before.progress.params
        }
        assert l2(moved) <= 1.0 + 1e-3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weighting": "examples"}, "privacy needs weighting='uniform'"),
        ({"weighting": "uniform", "aggregate": Median()}, "the mean as aggregate"),
    ],
)
def test_what_would_break_the_promise_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plain(privacy=PRIVACY, **changes)


def test_running_statistics_are_refused_with_privacy() -> None:
    recipe, data = plain(privacy=PRIVACY, weighting="uniform").experiment.recipe, population((6,))
    with (
        pytest.raises(UsageError, match=r"normed has running statistics .*, whose scale no clipping norm fits"),
        LocalEngine(normed(), data, recipe) as engine,
    ):
        list(federate(normed(), data.sizes, recipe, engine))


def test_without_the_accountant_training_does_not_begin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting.rdp", None)
    with pytest.raises(UsageError, match=r"pip install 'progfed\[privacy\]'"):
        run(plain(privacy=PRIVACY, weighting="uniform").experiment, tmp_path)
    assert RunDirectory(tmp_path).records() == []


@pytest.mark.parametrize("settings", [{"clip": 0.0, "noise": 1.0}, {"clip": 1.0, "noise": 0.0}])
def test_privacy_without_a_norm_or_noise_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="privacy needs a positive clip and noise"):
        Privacy(**settings)
