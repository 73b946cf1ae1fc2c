"""Modules that have moved are found under the names that version 0.1 documented, with what was in them."""

from __future__ import annotations

import importlib

import pytest

import progfed
from progfed.old_paths import MOVED
from progfed.runs.train import train


def test_experiments_are_where_they_were() -> None:
    with pytest.warns(DeprecationWarning, match=r"progfed\.experiment has moved"):
        old = importlib.import_module("progfed.experiment")
    assert (old.Experiment, old.run, old.train) == (progfed.Experiment, progfed.run, train)


@pytest.mark.parametrize("name", sorted(set(MOVED.values())))
def test_what_has_moved_is_where_it_is_said_to_be(name: str) -> None:
    assert importlib.import_module(name).__doc__
