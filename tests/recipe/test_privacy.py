"""Differential privacy: the sum is bounded, the noise is what was asked for, and what is spent is known and kept."""

from __future__ import annotations

import math
import stat
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from reliability.cases import dense, normed, outcome, plain, population

from progfed import rng
from progfed.engines.local import LocalEngine
from progfed.errors import StorageError, UsageError
from progfed.recipe import optimizers
from progfed.recipe.aggregate import Median, clip, l2
from progfed.recipe.privacy import FINEST, Privacy, noisy
from progfed.runs.directory import RunDirectory
from progfed.runs.experiment import Experiment
from progfed.runs.identity import describe, identity
from progfed.runs.train import run, train
from progfed.server.loop import federate
from progfed.tensors import Tensors

SECRET, OTHER = "9c1f83e07a4b5d6210c4e8f7b3a29d51", "0b6ad3f9c85e174226d0a7c19e84f35b"
PRIVACY = Privacy(clip=1.0, noise=0.8, secret=SECRET)


def updates(number: int, *, size: int = 4000, scale: float = 5.0) -> list[tuple[float, Tensors]]:
    draw = torch.Generator().manual_seed(7)
    return [(1.0, {"w": scale * torch.randn(size, generator=draw)}) for _ in range(number)]


def private(**changes: object) -> Experiment:
    return plain(weighting="uniform", **changes).experiment


def released(privacy: Privacy, given: list[tuple[float, Tensors]], *, cohort: int = 4, number: int = 1) -> Tensors:
    return privacy.release(given, cohort=cohort, seed=0, number=number)


def test_the_noise_has_the_deviation_that_was_asked_for() -> None:
    quiet, loud = (Privacy(clip=2.0, noise=noise, secret=SECRET) for noise in (1e-9, 0.7))
    given = updates(4, size=200_000)
    noise = released(loud, given)["w"] - released(quiet, given)["w"]
    wanted = 0.7 * 2.0 / 4
    assert noise.std().item() == pytest.approx(wanted, rel=0.01)
    assert abs(noise.mean().item()) < 5 * wanted / math.sqrt(200_000)


def test_one_client_moves_the_result_by_no_more_than_the_norm_over_the_cohort() -> None:
    quiet, given = Privacy(clip=1.0, noise=1e-9, secret=SECRET), updates(4)
    without = {name: value - released(quiet, given)[name] for name, value in released(quiet, given[:3]).items()}
    assert l2(without) <= 1.0 / 4 * (1 + 1e-4)


def test_who_is_missing_does_not_change_the_denominator() -> None:
    quiet = Privacy(clip=1e9, noise=1e-18, secret=SECRET)
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


def test_the_secret_changes_cohorts_and_noise_and_is_no_part_of_the_experiment() -> None:
    other = replace(PRIVACY, secret=OTHER)
    assert not torch.equal(released(other, updates(3))["w"], released(PRIVACY, updates(3))["w"])
    without, one, two = (private(privacy=p) for p in (Privacy(clip=1.0, noise=0.8), PRIVACY, other))
    drawn = [[experiment.recipe.draw(100, number) for number in range(5)] for experiment in (one, two)]
    assert drawn[0] != drawn[1]
    assert SECRET not in str(describe(one)) + repr(one)
    assert identity(without) == identity(one) == identity(two)  # so that nodes need not know it
    assert identity(one) != identity(private(privacy=replace(PRIVACY, noise=0.9)))


def test_the_noise_depends_on_every_bit_of_the_secret_and_on_the_seed() -> None:
    given = updates(3, size=50)
    bits = int(SECRET, 16)
    secrets = [f"{bits ^ 1 << bit:032x}" for bit in range(128)]
    drawn = [released(replace(PRIVACY, secret=secret), given)["w"] for secret in (SECRET, *secrets)]
    assert len({tuple(noise.tolist()) for noise in drawn}) == 129
    other = PRIVACY.release(given, cohort=4, seed=1, number=1)["w"]
    assert not torch.equal(other, drawn[0])


def test_an_attacker_who_can_try_every_seed_of_torchs_generator_does_not_find_the_noise() -> None:
    """Torch uses the low 32 bits of a seed: with the noise from there, all of them were tried in two minutes.

    Here the number that is drawn last is reduced to 8 bits, so that the attack takes no time. Of noise that comes from
    a torch or NumPy generator with that number as its seed, one of 256 tries is the noise itself.
    """
    given = updates(3, size=200)
    quiet = sum(clip(update, 1.0)["w"] for _, update in given)
    full = rng.number

    def reduced(seed: int, *key: rng.Key) -> int:
        return full(seed, *key) % 256

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rng, "number", reduced)
        noise = 4 * released(PRIVACY, given)["w"] - quiet
    tries = [torch.randn(200, generator=torch.Generator().manual_seed(s), dtype=torch.float64) for s in range(256)]
    tries += [torch.from_numpy(np.random.Generator(np.random.Philox(s)).standard_normal(200)) for s in range(256)]
    alike = [float(torch.corrcoef(torch.stack((noise.double(), tried)))[0, 1].abs()) for tried in tries]
    assert max(alike) < 0.5


def test_two_releases_of_one_sum_with_other_deviations_do_not_share_their_noise() -> None:
    given = updates(3)
    quiet = released(replace(PRIVACY, noise=1e-9), given)["w"]
    one, two = (released(replace(PRIVACY, noise=noise), given)["w"] - quiet for noise in (0.8, 1.6))
    assert abs(float(torch.corrcoef(torch.stack((one, two)))[0, 1])) < 0.1


def test_what_is_released_lies_on_one_grid_whatever_the_sum_was() -> None:
    """Else the last bits of a float would tell which sums it can have come from (Mironov, 2012)."""
    scale = 0.8
    grid = 2.0 ** math.floor(math.log2(scale * FINEST))
    for value in (torch.rand(500), torch.full((500,), 1e-30), torch.full((500,), math.pi)):
        out = noisy(value, scale, rng.SecretStream(bytes(16), "grid"))
        assert torch.equal((out / grid).round() * grid, out)


@pytest.mark.parametrize(
    "weak", ["only the server knows", "1234", "0" * 32, "0123456" * 10, SECRET[:30], SECRET + "f", "g" + SECRET[1:]]
)
def test_a_secret_that_could_be_guessed_is_refused_with_advice(weak: str) -> None:
    with pytest.raises(UsageError, match=r"32 or more random hexadecimal digits.*could be guessed") as caught:
        Privacy(clip=1.0, noise=1.0, secret=weak)
    assert weak not in str(caught.value)


def test_without_a_secret_the_loop_does_not_begin() -> None:
    recipe, data = private(privacy=Privacy(clip=1.0, noise=0.8)).recipe, population((6,))
    with LocalEngine(dense(), data, recipe) as engine, pytest.raises(UsageError, match="privacy needs a secret"):
        list(federate(dense(), data.sizes, recipe, engine))


def stopped(experiment: Experiment, folder: Path, *, after: int = 3) -> None:
    for record in train(experiment, folder, data=folder, checkpoint_every=1):
        if record["round"] == after:
            break


def test_a_run_makes_a_secret_that_only_its_owner_reads_and_forgets_it_when_it_is_complete(tmp_path: Path) -> None:
    experiment = private(privacy=Privacy(clip=1.0, noise=0.8))
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        stopped(experiment, folder)
    kept = [(folder / "privacy.secret").read_text().strip() for folder in folders]
    assert kept[0] != kept[1]
    assert all(len(secret) == 64 for secret in kept)
    assert all(stat.S_IMODE((folder / "privacy.secret").stat().st_mode) == 0o600 for folder in folders)
    everything = b"".join(
        path.read_bytes() for path in folders[0].rglob("*") if path.is_file() and "secret" not in path.name
    )
    assert kept[0].encode() not in everything
    for folder in folders:
        run(experiment, folder, workers=2)
        assert not (folder / "privacy.secret").exists()
        run(experiment, folder)
    assert outcome(folders[0]) != outcome(folders[1])


def test_a_run_with_a_secret_of_its_own_is_continued_to_the_bits_of_one_that_was_never_stopped(tmp_path: Path) -> None:
    experiment = private(privacy=Privacy(clip=1.0, noise=0.8))
    stopped(experiment, tmp_path / "cut")
    made = (tmp_path / "cut" / "privacy.secret").read_text().strip()
    run(experiment, tmp_path / "cut")
    run(private(privacy=replace(PRIVACY, secret=made)), tmp_path / "whole")
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def test_a_run_is_not_continued_with_another_secret_or_without_its_own(tmp_path: Path) -> None:
    stopped(private(privacy=PRIVACY), tmp_path)
    with pytest.raises(StorageError, match="was begun with another privacy secret: give that one or none"):
        run(private(privacy=replace(PRIVACY, secret=OTHER)), tmp_path)
    (tmp_path / "privacy.secret").rename(tmp_path / "elsewhere")
    for secret in ("", SECRET):
        with pytest.raises(StorageError, match=r"has lost its privacy\.secret"):
            run(private(privacy=replace(PRIVACY, secret=secret)), tmp_path)
    (tmp_path / "privacy.secret").write_text("0000")
    with pytest.raises(StorageError, match=r"damaged privacy\.secret"):
        run(private(privacy=Privacy(clip=1.0, noise=0.8)), tmp_path)


def test_reserves_count_as_asked_in_what_is_spent() -> None:
    experiment = private(privacy=PRIVACY, over_selection=1.6)
    data = population((6,))
    with LocalEngine(dense(), data, experiment.recipe) as engine:
        done = next(iter(federate(dense(), data.sizes, experiment.recipe, engine)))
    assert experiment.recipe.asked(5) == 5
    assert done.epsilon == PRIVACY.spent(1, clients=5, asked=5) > PRIVACY.spent(1, clients=5, asked=3)


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
    quiet = Privacy(clip=1.0, noise=1e-6, secret=SECRET)
    experiment = private(privacy=quiet, server=optimizers.fedavg())
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
