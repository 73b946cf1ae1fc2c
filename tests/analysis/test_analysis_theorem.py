"""Theorem 3.3 on a problem whose constants are known: the bound holds, and a wrong step size breaks it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from progfed.analysis.theorem import Quadratic, check_bound, step_size, train

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
