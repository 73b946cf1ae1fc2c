"""Randomness without state: one generator per (seed, purpose, round, client, ...).

What is drawn for a key does not depend on what was drawn before, so neither the engine, nor the number of
workers, nor an interruption can change it, and there is no generator state to save in a checkpoint.

A seed is a number that anybody may know, and the generators made of it are statistical ones: torch's uses 32 bits of
its seed, NumPy's 63. That serves training, and hides nothing (docs/reliability.md, "Seeds and streams"). What nobody
may foresee is drawn from a secret instead, by `SecretStream`.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

Key = int | str
Secret = bytes
"""16 bytes or more of real randomness, known to one side only."""


def number(seed: int, *key: Key) -> int:
    """A 63-bit number for this key: the seed of a generator, or a seed that travels in a message.

    >>> number(0, "sample", 1) == number(0, "sample", 1) != number(0, "sample", 2)
    True
    """
    return int.from_bytes(hashlib.sha256(_text(seed, *key)).digest()[:8], "little") >> 1


def _text(*key: Key) -> bytes:
    """A key as bytes; keys that differ, in their types too, give different bytes."""
    return "\x1f".join(f"{type(part).__name__}:{part}" for part in key).encode()


def generator(seed: int, *key: Key) -> torch.Generator:
    """A torch generator of its own for this key."""
    return torch.Generator().manual_seed(number(seed, *key))


def numpy_generator(seed: int, *key: Key) -> np.random.Generator:
    """A NumPy generator of its own for this key."""
    return np.random.Generator(np.random.Philox(number(seed, *key)))


@contextmanager
def default(seed: int, *key: Key) -> Iterator[None]:
    """Let torch's default generator draw for this key inside the block, and put its state back afterwards.

    Layers draw from the default generator when they initialise and when they drop out; this is the one place
    that touches it, and it leaves no trace. Not for threads: they share that generator. Where CUDA is in use, its
    generators follow.
    """
    before, cuda = torch.get_rng_state(), torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    there = torch.cuda.get_rng_state_all() if cuda else []
    torch.set_rng_state(generator(seed, *key).get_state())
    if cuda:
        torch.cuda.manual_seed_all(number(seed, *key))
    try:
        yield
    finally:
        torch.set_rng_state(before)
        if cuda:
            torch.cuda.set_rng_state_all(there)


_BORROWED = np.random.MT19937(0)
"""Takes the place of the generator behind `np.random` in `defaults`: to save and restore its state would cost more."""


@contextmanager
def defaults(seed: int, *key: Key) -> Iterator[None]:
    """Like `default`, and Python's `random` and NumPy's `np.random` draw for this key as well: for a user's code."""
    python, arrays = random.getstate(), np.random.get_bit_generator()  # type: ignore[attr-defined]
    random.seed(number(seed, *key, "python"))
    np.random.set_bit_generator(_BORROWED)  # type: ignore[attr-defined]
    np.random.seed(number(seed, *key, "numpy") % 2**32)
    try:
        with default(seed, *key):
            yield
    finally:
        random.setstate(python)
        np.random.set_bit_generator(arrays)  # type: ignore[attr-defined]


class SecretStream:
    """Random bytes that cannot be foreseen, or told from others, without all bits of the secret.

    SHAKE-256 of a key, made by HMAC-SHA-512 of the secret and the purpose, and of a counter. The same secret and
    purpose give the same bytes, so a resumed run repeats what it drew. About as fast as torch's own normal numbers.

    >>> SecretStream(b"0123456789abcdef", "noise", 1).below(6) in range(6)
    True
    """

    def __init__(self, secret: Secret, *key: Key) -> None:
        self._key = hmac.digest(secret, _text(*key), "sha512")
        self._taken = 0

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        self._taken += 1
        return hashlib.shake_256(self._key + self._taken.to_bytes(8, "little")).digest(count)

    def below(self, limit: int) -> int:
        """A number from 0 to below `limit`, all equally likely but for less than `limit` / 2**128."""
        return int.from_bytes(self.take(16), "little") % limit

    def normal(self, count: int) -> Tensor:
        """Standard normal numbers in double precision: the inverse of the distribution at 53 random bits each."""
        words = np.frombuffer(self.take(8 * count), "<u8") >> np.uint64(11)
        odd = 2 * words.astype(np.int64) + 1 - (1 << 53)  # symmetric about 0, and never 0 or 1 as a probability
        return torch.from_numpy(odd * 2.0**-53).erfinv_().mul_(math.sqrt(2))


def rank(seed: int | Secret, *key: Key) -> int:
    """A number to sort by: random, but always the same for the same key and the same seed or secret."""
    if isinstance(seed, bytes):
        return int.from_bytes(SecretStream(seed, *key).take(16), "little")
    return number(seed, *key)


def sample(population: int, size: int, seed: int | Secret, *key: Key) -> tuple[int, ...]:
    """Draw numbers without replacement, with work proportional to how many are drawn.

    Floyd's algorithm: a population of a million costs no more than one of a hundred.

    Args:
        population: Numbers are drawn from 0 to below this one.
        size: How many are drawn.
        seed: What they are drawn from: a seed, or a secret where nobody may foresee them.
        *key: What they are drawn for; another key gives other numbers.

    Returns:
        The numbers drawn, in increasing order.
    """
    below = _below(seed, *key)
    chosen: set[int] = set()
    for top in range(population - size, population):
        pick = below(top + 1)
        chosen.add(top if pick in chosen else pick)
    return tuple(sorted(chosen))


def _below(seed: int | Secret, *key: Key) -> Callable[[int], int]:
    """A function that draws a number below a limit, from a seed or from a secret."""
    if isinstance(seed, bytes):
        return SecretStream(seed, *key).below
    draw = numpy_generator(seed, *key)
    return lambda limit: int(draw.integers(0, limit))
