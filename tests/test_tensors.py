"""Arithmetic on named tensors, and trees of them."""

from __future__ import annotations

import pytest
import torch

from progfed.tensors import add, mean, of_parts, sub, tree_len, tree_map


def t(*values: float) -> torch.Tensor:
    return torch.tensor(values)


def test_the_mean_of_a_name_is_over_those_who_have_it() -> None:
    result = mean([(1.0, {"a": t(2.0), "b": t(1.0)}), (3.0, {"a": t(6.0)})])
    assert result["a"].item() == 5.0
    assert result["b"].item() == 1.0


def test_the_mean_does_not_change_its_inputs() -> None:
    first = {"a": t(2.0)}
    mean([(0.5, first), (1.0, {"a": t(1.0)})])
    assert first["a"].item() == 2.0


def test_add_leaves_names_that_did_not_move() -> None:
    before = {"a": t(1.0), "b": t(2.0)}
    after = add(before, {"a": t(0.5)})
    assert after["a"].item() == 1.5
    assert after["b"] is before["b"]


def test_sub_and_parts_go_by_name() -> None:
    tensors = {"E1.w": t(3.0), "E10.w": t(4.0), "G1.w": t(5.0)}
    assert set(of_parts(tensors, ["E1", "G1"])) == {"E1.w", "G1.w"}
    assert sub({"E1.w": t(3.0)}, tensors)["E1.w"].item() == 0.0


def test_trees_of_inputs_are_mapped_and_measured() -> None:
    tree = {"ids": torch.zeros(4, 2), "more": (torch.zeros(4), [torch.zeros(4, 1)])}
    assert tree_len(tree) == 4
    assert tree_len(tree_map(lambda leaf: leaf[:3], tree)) == 3
    with pytest.raises(ValueError, match="common first dimension"):
        tree_len((torch.zeros(2), torch.zeros(3)))
    with pytest.raises(TypeError, match="tensors"):
        tree_len("text")
