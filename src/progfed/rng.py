"""Randomness without state: one generator per (seed, purpose, round, client, ...).

What is drawn for a key does not depend on what was drawn before, so neither the engine, nor the number of
workers, nor an interruption can change it, and there is no generator state to save in a checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

Key = int | str


def number(seed: int, *key: Key) -> int:
    """A 63-bit number for this key: the seed of a generator, or a seed that travels in a message.

    >>> number(0, "sample", 1) == number(0, "sample", 1) != number(0, "sample", 2)
    True
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in (seed, *key))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


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


def sample(population: int, size: int, seed: int, *key: Key) -> tuple[int, ...]:
    """`size` different numbers below `population`, in increasing order; work proportional to `size`.

    Floyd's algorithm: a population of a million costs no more than one of a hundred.
    """
    draw = numpy_generator(seed, *key)
    chosen: set[int] = set()
    for top in range(population - size, population):
        pick = int(draw.integers(0, top + 1))
        chosen.add(top if pick in chosen else pick)
    return tuple(sorted(chosen))
