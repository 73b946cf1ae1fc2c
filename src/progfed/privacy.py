"""Client-level differential privacy: what one client holds can hardly be told from the model that was trained.

Each round the updates are clipped to an L2 norm, summed, and Gaussian noise in proportion to the norm is added before
anything else sees the sum (McMahan et al., 2018). The server itself is trusted with the updates.

Progressive training makes the number of trained names differ from phase to phase. What a round costs in privacy is the
same for all of them: it depends on the noise relative to the clipping norm, not on how many names there are. New parts
are initialised from the seed and old heads are dropped, both without looking at data, so a growth costs nothing. How
much the noise hurts does depend on the number of names, which is what `per_parameter` is for.
"""

from __future__ import annotations

import hashlib
import importlib
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from progfed import rng
from progfed.aggregate import Weighted, clip
from progfed.errors import UsageError
from progfed.tensors import Tensors, add, count


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Clip to `clip`, add noise of `noise` times that norm to the sum; `delta` is the delta of the (epsilon, delta).

    With `per_parameter` the norm is `clip` times the square root of the number of trained values: a small early stage
    gets a small norm and little noise, and the noise on every coordinate is the same in all stages.
    `secret` keeps the noise and the choice of cohorts from those who know the seed. Without it a run is a simulation:
    anyone with the seed can take the noise off again.
    """

    clip: float
    noise: float
    delta: float = 1e-5
    per_parameter: bool = False
    secret: str = field(default="", repr=False, metadata={"secret": True})

    def __post_init__(self) -> None:
        if not (self.clip > 0 and self.noise > 0 and 0 < self.delta < 1):
            raise UsageError(
                f"privacy needs a positive clip and noise and a delta in (0, 1), "
                f"not {self.clip}, {self.noise} and {self.delta}"
            )

    def bound(self, values: int) -> float:
        """The clipping norm where an update has this many values."""
        return self.clip * math.sqrt(values) if self.per_parameter else self.clip

    def release(self, updates: Weighted, *, cohort: int, seed: int, number: int) -> Tensors:
        """The noisy mean of round `number`.

        It is divided by the cohort even if fewer came: a denominator that depends on who came would leak.
        """
        total: Tensors = {}
        for _, update in updates:
            clipped = clip(update, self.bound(count(update)))
            total = add(total, clipped) if total else clipped
        scale = self.noise * self.bound(count(total))
        drawn = gaussian(total, self.key(total, seed, number))
        return {name: (value + scale * drawn[name]) / cohort for name, value in total.items()}

    def key(self, total: Mapping[str, Tensor], seed: int, number: int) -> int:
        """The seed of a round's noise: the same for the same sum, so that a round that is repeated after a crash gives
        nothing away; another for another sum, so that the difference of two attempts still holds the noise of both."""
        digest = hashlib.sha256()
        for name in sorted(total):
            digest.update(name.encode() + b"\0" + total[name].contiguous().numpy().tobytes())
        return rng.number(hidden_seed(seed, self), "noise", number, digest.hexdigest())

    def spent(self, rounds: int, *, clients: int, asked: int) -> float:
        """Epsilon after this many rounds that each ask `asked` of `clients`: two populations that differ in the whole
        data of one client are that hard to tell apart."""
        one = _one_round(clients, asked, self.noise)  # rounds add up, order by order
        return float(accounting().rdp.compute_epsilon(one.orders, rounds * one.rdp, self.delta)[0])


def hidden_seed(seed: int, privacy: Privacy | None) -> int:
    """The seed of what only the server may foresee: cohorts and noise."""
    return rng.number(seed, "secret", privacy.secret) if privacy is not None and privacy.secret else seed


def gaussian(like: Mapping[str, Tensor], key: int) -> Tensors:
    """Standard normal numbers in the shapes of `like`, rounded from double precision."""
    drawn = rng.generator(key, "gaussian")
    return {
        name: torch.randn(like[name].shape, generator=drawn, dtype=torch.float64).to(like[name].dtype)
        for name in sorted(like)
    }


def accounting() -> Any:
    """The accountant's library, or a clear error: privacy that nobody counts is none."""
    try:
        importlib.import_module("dp_accounting.rdp")
        return importlib.import_module("dp_accounting")
    except ImportError as error:
        raise UsageError(
            "training with privacy needs an accountant: install it with pip install 'progfed[privacy]'"
        ) from error


@lru_cache(maxsize=8)
def _one_round(clients: int, asked: int, noise: float) -> Any:
    """The accountant after one round: Renyi differential privacy, a cohort drawn without replacement.

    Replacing a client moves the sum by up to twice the clipping norm, hence the noise counts half.
    """
    library = accounting()
    logging.getLogger("absl").setLevel(logging.ERROR)  # it reports every order that it leaves out
    accountant = library.rdp.RdpAccountant(neighboring_relation=library.NeighboringRelation.REPLACE_ONE)
    noisy = library.GaussianDpEvent(noise / 2)
    accountant.compose(library.SampledWithoutReplacementDpEvent(clients, asked, noisy) if asked < clients else noisy)
    return accountant
