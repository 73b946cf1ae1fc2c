"""Client-level differential privacy: what one client holds can hardly be told from the model that was trained.

Each round the updates are clipped to an L2 norm, summed, and Gaussian noise in proportion to the norm is added before
anything else sees the sum (McMahan et al., 2018). The server itself is trusted with the updates.

Progressive training makes the number of trained names differ from phase to phase. What a round costs in privacy is the
same for all of them: it depends on the noise relative to the clipping norm, not on how many names there are. New parts
are initialised from the seed and old heads are dropped, both without looking at data, so a growth costs nothing. How
much the noise hurts does depend on the number of names, which is what `per_parameter` is for.

Noise that can be computed again can be taken off again. It is therefore drawn by a cryptographic generator from a
secret that only the server has, and so is the choice of cohorts, which the accountant takes to be unknown.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
import logging
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from torch import Tensor

from progfed import rng
from progfed.errors import UsageError
from progfed.recipe.aggregate import Weighted, clip
from progfed.tensors import Tensors, add, count

FINEST = 2.0**-30
"""Sums and noise are rounded to multiples of about this share of the noise's deviation before they are added."""


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """Client-level differential privacy: updates are clipped, and noise is added to their sum.

    Args:
        clip: The L2 norm to which every update is clipped.
        noise: The deviation of the noise, as a multiple of that norm.
        delta: The delta of the (epsilon, delta) that is promised.
        per_parameter: Whether the norm is `clip` times the square root of the number of trained values: a small early
            stage then gets a small norm and little noise, and the noise on every coordinate is the same in all stages.
        secret: What noise and cohorts are drawn from: 32 hexadecimal digits or more from a source of real randomness,
            known to the server alone. It is not part of the experiment's identity. Where none is given, `run` makes one
            and keeps it in the run's folder until the run is complete. To repeat a run to the bit, give both the same.
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
        if self.secret and not _strong(self.secret):
            raise UsageError(
                "a privacy secret is 32 or more random hexadecimal digits, such as secrets.token_hex(32) gives, and "
                "this one could be guessed: use such a one, or leave it out and the run makes its own"
            )

    def bound(self, values: int) -> float:
        """The clipping norm where an update has this many values."""
        return self.clip * math.sqrt(values) if self.per_parameter else self.clip

    def release(self, updates: Weighted, *, cohort: int, seed: int, number: int) -> Tensors:
        """The noisy mean of round `number`.

        It is divided by the cohort even if fewer came: a denominator that depends on who came would leak.

        Args:
            updates: Pairs of a weight, which is not used, and an update.
            cohort: The number of clients that the round needs.
            seed: The seed of the run.
            number: The number of the round.
        """
        total: Tensors = {}
        for _, update in updates:
            clipped = clip(update, self.bound(count(update)))
            total = add(total, clipped) if total else clipped
        if not total:
            return {}
        scale = float(self.noise * self.bound(count(total)))
        # the same for the same sum, so that a round that is repeated after a crash gives nothing away; another for
        # another sum or deviation, so that the difference of two releases still holds the noise of both
        key = ("noise", number, cohort, scale.hex(), _digest(total))
        return {
            name: noisy(value, scale, rng.SecretStream(self.hidden(seed), *key, name)).div_(cohort).to(value.dtype)
            for name, value in total.items()
        }

    def hidden(self, seed: int) -> rng.Secret:
        """What the noise and the cohorts of a run with this seed are drawn from; an error where there is no secret."""
        if not self.secret:
            raise UsageError(
                "privacy needs a secret of the server, or whoever knows the seed takes the noise off again: give "
                "Privacy(secret=secrets.token_hex(32)), or train with `run`, which makes and keeps one"
            )
        return hmac.digest(bytes.fromhex(self.secret), f"progfed privacy, seed {seed}".encode(), "sha256")

    def spent(self, rounds: int, *, clients: int, asked: int) -> float:
        """Epsilon after some rounds: how hard two populations that differ in one client's whole data are to tell apart.

        Args:
            rounds: How many rounds were released.
            clients: How many clients there are.
            asked: How many of them each round asked.
        """
        one = _one_round(clients, asked, self.noise)  # rounds add up, order by order
        return float(accounting().rdp.compute_epsilon(one.orders, rounds * one.rdp, self.delta)[0])


def new_secret() -> str:
    """A secret from the operating system's source of randomness."""
    return secrets.token_hex(32)


def noisy(value: Tensor, scale: float, stream: rng.SecretStream) -> Tensor:
    """`value` plus Gaussian noise of deviation `scale`, in double precision.

    Which floats noise can reach depends on what it is added to, and their last bits would tell (Mironov, 2012). Both
    are rounded to the same grid first, on which their sum is exact: every point of it can be reached from every value.
    """
    grid = 2.0 ** math.floor(math.log2(scale * FINEST))
    drawn = stream.normal(value.numel()).view(value.shape).mul_(scale / grid).round_()
    return (value.double() / grid).round_().add_(drawn).mul_(grid)


def _digest(total: Mapping[str, Tensor]) -> str:
    """A hash of the names and numbers of a sum."""
    digest = hashlib.sha256()
    for name in sorted(total):
        digest.update(name.encode() + b"\0" + total[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def _strong(secret: str) -> bool:
    """Whether a secret looks like 128 random bits: one in ten million such would be refused."""
    digits = set(secret.lower())
    return len(secret) >= 32 and len(secret) % 2 == 0 and digits <= set("0123456789abcdef") and len(digits) >= 8


def accounting() -> Any:
    """The library that counts epsilon, or a clear error: privacy that nobody counts is none."""
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
