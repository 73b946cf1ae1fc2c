"""Theorem 3.3 on a problem whose constants are known: the bound holds, and a wrong step size breaks it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from progfed.analysis.theorem import Quadratic, check_bound, rate, step_size, train

PROBLEMS = [Quadratic(seed=seed, sigma=sigma) for seed in (0, 1) for sigma in (0.0, 0.7)]


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("rounds", [30, 120])
def test_the_bound_holds_with_the_theorems_step_size(problem: Quadratic, rounds: int) -> None:
    bound = check_bound(problem, rounds=rounds, runs=60)
    assert bound.holds
    assert bound.sub_models + 3 * bound.sub_models_error < bound.sub_models_bound
    assert 0 < bound.alpha < 1
    assert math.isfinite(bound.q)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_ten_times_the_largest_step_size_breaks_the_bound(problem: Quadratic) -> None:
    assert not check_bound(problem, rounds=200, runs=20, gamma=10 / problem.smoothness).holds


def test_the_first_statement_holds_where_sub_models_point_elsewhere_too() -> None:
    problem = Quadratic(apart=0.5, sigma=0.1, seed=1)
    bound = check_bound(problem, rounds=120, runs=60)
    assert bound.sub_models < bound.sub_models_bound
    assert bound.alpha < 0.1


def test_the_largest_curvature_is_the_smoothness_and_the_minimum_is_zero() -> None:
    problem = Quadratic()
    curvature = torch.autograd.functional.hessian(lambda x: problem.value(x[None])[0], problem.minimum)
    assert torch.linalg.eigvalsh(curvature).max().item() == pytest.approx(problem.smoothness)
    assert torch.linalg.eigvalsh(curvature).min().item() > 0
    assert problem.value(problem.minimum[None]).item() == 0


def test_the_gradient_is_that_of_the_value() -> None:
    problem = Quadratic(seed=3)
    x = torch.randn(2, problem.size, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (expected,) = torch.autograd.grad(problem.value(x).sum(), x)
    torch.testing.assert_close(problem.gradient(x.detach()), expected)


def test_the_step_size_is_the_smaller_of_both_terms() -> None:
    problem = Quadratic(sigma=0.0)
    start = problem.value(torch.zeros(1, problem.size, dtype=torch.float64)).item()
    assert step_size(problem, 100) == 1 / problem.smoothness
    assert step_size(replace(problem, sigma=3.0), 100) == pytest.approx(math.sqrt(start / 900))


def test_in_the_last_stage_alpha_and_q_are_one() -> None:
    problem = Quadratic()
    *_, (alpha, norm, whole) = train(problem, rounds=30, runs=3, gamma=0.1)
    torch.testing.assert_close(alpha, torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(norm, whole)


def test_without_noise_one_stage_is_gradient_descent() -> None:
    problem = Quadratic(stages=1, sigma=0.0)
    norms = [float(whole[0]) for _, _, whole in train(problem, rounds=5, runs=1, gamma=0.2)]
    x, expected = torch.zeros(1, problem.size, dtype=torch.float64), []
    for _ in range(5):
        expected.append(float(problem.gradient(x).norm()))
        x = x - 0.2 * problem.gradient(x)
    assert norms == pytest.approx(expected)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("rounds", [30, 121])
def test_half_the_mean_over_the_last_half_is_at_most_the_first_sum(problem: Quadratic, rounds: int) -> None:
    bound = check_bound(problem, rounds=rounds, runs=20)
    norms = [whole for _, _, whole in train(problem, rounds=rounds, runs=20, gamma=bound.gamma)]
    late = torch.stack(norms[-(rounds // 2) :]).square().mean().item()
    assert bound.last_half == pytest.approx(late)
    assert bound.remark_holds
    assert late / 2 <= bound.sub_models


def test_the_first_statement_and_the_remark_hold_where_alpha_is_negative() -> None:
    bound = check_bound(Quadratic(apart=0.5), rounds=300, runs=60)
    assert bound.alpha < -1
    assert bound.sub_models < bound.sub_models_bound
    assert bound.remark_holds


def test_the_first_sum_falls_like_that_of_end_to_end_training_and_the_second_does_not_fall() -> None:
    slopes = rate(Quadratic(), (100, 300, 900), runs=40).slopes
    assert slopes["sub_models"] == pytest.approx(slopes["end_to_end"], abs=0.05)
    assert -0.8 < slopes["sub_models"] < -0.45
    assert -0.8 < slopes["last_half"] < -0.45
    # as T grows so do the stages in which the blocks above are not trained, each in the same proportion
    assert abs(slopes["full"]) < 0.05


def test_end_to_end_training_is_progressive_training_in_one_stage() -> None:
    problem = Quadratic(sigma=0.0)
    norms = [float(whole[0]) for _, _, whole in train(problem, rounds=4, runs=1, gamma=0.2, end_to_end=True)]
    x = torch.zeros(1, problem.size, dtype=torch.float64)
    for norm in norms:
        assert norm == pytest.approx(float(problem.gradient(x).norm()))
        x = x - 0.2 * problem.gradient(x)


def test_the_slope_of_a_power_of_t_is_its_exponent() -> None:
    exact = tuple(5.0 * total**-0.5 for total in (100, 300, 1000))
    found = replace(rate(Quadratic(), (100, 300), runs=2), rounds=(100, 300, 1000), sub_models=exact, full=exact)
    found = replace(found, last_half=exact, end_to_end=exact)
    assert list(found.slopes.values()) == pytest.approx([-0.5] * 4)
