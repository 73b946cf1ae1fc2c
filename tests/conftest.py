"""What holds for every test."""

from __future__ import annotations

import pytest
import torch

from tiny import tiny_data, tiny_experiment, tiny_model, tiny_recipe  # noqa: F401


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
