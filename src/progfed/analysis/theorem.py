"""Theorem 3.3 (convergence) in numbers: on a problem whose L, sigma^2 and minimum are known the bound must hold.

f is a quadratic in blocks E_1..E_S and a head G_S. A sub-model f^s is a quadratic in E_1..E_s and a head of its own,
G_s, with other curvatures, so that its gradient leans towards that of f without being it. Training is the theorem's: on
f^s while t is in stage s, with the step alpha_t * gamma and noise of variance sigma^2; x_t is as initialised where it
is not trained yet. The proof gives, before any O(.):

    1/T sum_t E alpha_t^2 ||grad f^s(x_t^s)|E_s||^2  <=  2 F_0 / (T gamma) + gamma L sigma^2
    1/T sum_t E ||grad f(x_t)||^2                    <=  q^2 times the same

The proof moves E_s only; in the last stage G_S is trained as well, and counts as part of E_S.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from progfed import rng
from progfed.schedule import stage_lengths


@dataclass(frozen=True)
class Quadratic:
    """f(x) = (x - x*)' A (x - x*) / 2 with the largest eigenvalue L and the minimum 0, and its sub-models.

    Every block and head has `width` numbers, and curvatures from L/20 to L in directions of its own. Those of a
    sub-model are up to `spread` times larger or smaller. Its minimum is `apart` from that of f: if that is not 0,
    gradients may point away from each other, alpha_t passes through 0, and q has no bound.
    """

    stages: int = 3
    width: int = 4
    smoothness: float = 2.0
    sigma: float = 0.5
    spread: float = 3.0
    apart: float = 0.0
    seed: int = 0

    @property
    def size(self) -> int:
        """How many numbers the full model has."""
        return (self.stages + 1) * self.width

    @cached_property
    def directions(self) -> Tensor:
        """The eigenvectors of A, which are those of the sub-models: a random basis for each block."""
        draw = rng.generator(self.seed, "theorem", "directions")
        drawn = torch.randn(self.stages + 1, self.width, self.width, generator=draw, dtype=torch.float64)
        found: Tensor = torch.block_diag(*torch.linalg.qr(drawn)[0])  # type: ignore[no-untyped-call]
        return found

    @cached_property
    def curvatures(self) -> Tensor:
        """The eigenvalues of A: the same for every block."""
        return torch.linspace(self.smoothness / 20, self.smoothness, self.width).double().repeat(self.stages + 1)

    @cached_property
    def minimum(self) -> Tensor:
        """x*; training starts at 0."""
        return torch.randn(self.size, generator=rng.generator(self.seed, "theorem", "minimum"), dtype=torch.float64)

    def places(self, stage: int) -> Tensor:
        """The positions of E_1..E_s in the full model's numbers; in the last stage, where f^S is f, with G_S."""
        return torch.arange(stage * self.width if stage < self.stages else self.size)

    def value(self, x: Tensor) -> Tensor:
        """f of each row."""
        return ((x - self.minimum) @ self.directions).square() @ self.curvatures / 2

    def gradient(self, x: Tensor) -> Tensor:
        """grad f of each row."""
        return (x - self.minimum) @ self.directions * self.curvatures @ self.directions.T

    def sub_gradient(self, stage: int, x: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
        """grad f^s of each row, in E_1..E_s (as they are in x) and in the head G_s."""
        if stage == self.stages:
            return self.gradient(x), torch.zeros_like(head)
        draw = rng.generator(self.seed, "theorem", "sub-model", stage)
        factors = self.spread ** (2 * torch.rand(self.size, generator=draw, dtype=torch.float64) - 1)
        away = self.minimum + self.apart * torch.randn(self.size, generator=draw, dtype=torch.float64)
        blocks = stage * self.width
        own = torch.cat((x[:, : self.size - self.width], head), 1)  # G_s in the place of G_S
        found = (own - away) @ self.directions * (self.curvatures * factors) @ self.directions.T
        return found[:, :blocks], found[:, -self.width :]


@dataclass(frozen=True)
class Bound:
    """Both statements of the theorem: the mean over runs of what is bounded, its standard error, and the bound.

    `alpha` is the smallest alpha_t of any run, `q` the largest q_t. `last_half` is the mean of ||grad f||^2 over the
    last T/2 iterations, in which the full model is trained since T_S >= T/2.
    """

    gamma: float
    alpha: float
    sub_models: float
    sub_models_error: float
    sub_models_bound: float
    full: float
    full_bound: float
    q: float
    last_half: float

    @property
    def holds(self) -> bool:
        """Whether both means are below their bounds; a run that diverged to infinity is above any bound."""
        return self.sub_models <= self.sub_models_bound and self.full <= self.full_bound

    @property
    def remark_holds(self) -> bool:
        """The remark after the theorem: half the mean over the last half is at most the first sum.

        The paper prints a factor of 1/2 * 1/(2T) before the sum over the last half. Since alpha_t = 1 there, the factor
        is 1/T, which is half of the mean and is checked here; it implies what is printed.
        """
        return self.last_half / 2 <= self.sub_models * (1 + 1e-9)


def step_size(problem: Quadratic, rounds: int) -> float:
    """gamma of the theorem: min(1/L, sqrt(F_0 / (sigma^2 T)))."""
    noise = math.sqrt(_start(problem) / (problem.sigma**2 * rounds)) if problem.sigma else math.inf
    return min(1 / problem.smoothness, noise)


def check_bound(
    problem: Quadratic, *, rounds: int = 300, runs: int = 200, gamma: float | None = None, end_to_end: bool = False
) -> Bound:
    """Train `runs` times side by side and compare the means with the bound.

    Args:
        problem: The quadratic and its noise.
        rounds: T, the number of iterations.
        runs: How many independent runs the means are over.
        gamma: The step size; None: the theorem's.
        end_to_end: Train the full model from the start, which is plain SGD.
    """
    gamma = step_size(problem, rounds) if gamma is None else gamma
    bound = 2 * _start(problem) / (rounds * gamma) + gamma * problem.smoothness * problem.sigma**2
    sub = full = torch.zeros(runs, dtype=torch.float64)
    q, least, late = torch.zeros(runs, dtype=torch.float64), 1.0, torch.zeros(runs, dtype=torch.float64)
    iterations = train(problem, rounds=rounds, runs=runs, gamma=gamma, end_to_end=end_to_end)
    for iteration, (alpha, norm, whole) in enumerate(iterations):
        sub, full = sub + (alpha * norm) ** 2 / rounds, full + whole**2 / rounds
        if iteration >= rounds - rounds // 2:
            late = late + whole**2 / (rounds // 2)
        q, least = torch.maximum(q, whole / (alpha * norm).abs()), min(least, float(alpha.min()))
    worst = _finite(q.max())
    return Bound(
        gamma=gamma,
        alpha=least,
        sub_models=_finite(sub.mean()),
        sub_models_error=_finite(sub.std() / math.sqrt(runs)),
        sub_models_bound=bound,
        full=_finite(full.mean()),
        full_bound=worst**2 * bound,
        q=worst,
        last_half=_finite(late.mean()),
    )


@dataclass(frozen=True)
class Rate:
    """How the errors fall with T: the sums of the theorem for each T, and the slopes of log error against log T.

    SGD's rate is a slope of -1/2. `end_to_end` is the error of plain SGD on the full model, for comparison.
    """

    rounds: tuple[int, ...]
    sub_models: tuple[float, ...]
    full: tuple[float, ...]
    last_half: tuple[float, ...]
    end_to_end: tuple[float, ...]

    @property
    def slopes(self) -> dict[str, float]:
        """The exponent of T for each error, fitted by least squares."""
        names = ("sub_models", "full", "last_half", "end_to_end")
        return {name: _slope(self.rounds, getattr(self, name)) for name in names}


def rate(problem: Quadratic, rounds: Sequence[int], *, runs: int = 200) -> Rate:
    """The errors of progressive and of end-to-end training for each of these T, with the theorem's step size."""
    grown = [check_bound(problem, rounds=total, runs=runs) for total in rounds]
    whole = [check_bound(problem, rounds=total, runs=runs, end_to_end=True) for total in rounds]
    return Rate(
        rounds=tuple(rounds),
        sub_models=tuple(bound.sub_models for bound in grown),
        full=tuple(bound.full for bound in grown),
        last_half=tuple(bound.last_half for bound in grown),
        end_to_end=tuple(bound.full for bound in whole),
    )


def _slope(rounds: Sequence[int], errors: Sequence[float]) -> float:
    x, y = [math.log(total) for total in rounds], [math.log(error) for error in errors]
    return statistics.linear_regression(x, y).slope


def train(
    problem: Quadratic, *, rounds: int, runs: int, gamma: float, end_to_end: bool = False
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """alpha_t, ||grad f^s|E_s|| and ||grad f|| of each run in each iteration, progressive or end-to-end."""
    lengths = (*[0] * (problem.stages - 1), rounds) if end_to_end else stage_lengths(rounds, problem.stages)
    x = torch.zeros(runs, problem.size, dtype=torch.float64)
    draw = rng.generator(problem.seed, "theorem", "noise")
    for stage, length in enumerate(lengths, start=1):
        head = torch.zeros(runs, problem.width, dtype=torch.float64)  # G_s is new in every stage
        trained = problem.places(stage)
        for _ in range(length):
            whole, (ours, heads) = problem.gradient(x), problem.sub_gradient(stage, x, head)
            norm = ours.norm(dim=1)
            alpha = ((whole[:, trained] * ours).sum(1) / norm**2).clamp(max=1)
            yield alpha, norm, whole.norm(dim=1)
            numbers = len(trained) + problem.width * (stage < problem.stages)
            noise = torch.randn(runs, numbers, generator=draw, dtype=torch.float64) * problem.sigma / math.sqrt(numbers)
            step = (alpha * gamma)[:, None]
            x = x.clone()
            x[:, trained] -= step * (ours + noise[:, : len(trained)])
            if stage < problem.stages:
                head = head - step * (heads + noise[:, len(trained) :])


def _start(problem: Quadratic) -> float:
    """F_0 = f(x_0) - min f, with x_0 = 0 and min f = 0."""
    return float(problem.value(torch.zeros(1, problem.size, dtype=torch.float64)))


def _finite(value: Tensor) -> float:
    return float(value) if bool(torch.isfinite(value)) else math.inf
