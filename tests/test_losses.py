"""What heads learn from each other: the term by hand, and who is moved by it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from progfed.client.replica import total_loss
from progfed.errors import UsageError
from progfed.losses import Distil


def scores(*shape: int, heads: int = 3) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draw).requires_grad_() for _ in range(heads)]


def by_pairs(outputs: list[Tensor], dim: int) -> Tensor:
    """The divergence from each teacher to each other head, one pair after the other."""
    total = torch.zeros(())
    for teacher in outputs:
        for pupil in outputs:
            if pupil is not teacher:
                known = teacher.detach().softmax(dim)
                total = total + (known * (known.log() - pupil.softmax(dim).log())).sum(dim).mean()
    return total / (len(outputs) - 1)


@pytest.mark.parametrize(("shape", "dim"), [((5, 4), 1), ((2, 4, 3, 3), 1), ((2, 6, 4), -1)])
def test_distillation_is_the_divergence_between_all_pairs_of_heads(shape: tuple[int, ...], dim: int) -> None:
    outputs = scores(*shape)
    found, expected = 2.5 * by_pairs(outputs, dim), Distil(weight=2.5, dim=dim)(outputs)
    torch.testing.assert_close(found, expected)
    for one, other in zip(torch.autograd.grad(found, outputs), torch.autograd.grad(expected, outputs), strict=True):
        torch.testing.assert_close(one, other)


def test_heads_that_agree_are_left_as_they_are() -> None:
    output = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    heads = [output.clone().requires_grad_(), (output + 3.0).requires_grad_()]  # the same probabilities
    term = Distil()(heads)
    assert abs(term.item()) < 1e-6
    assert all(grad.abs().max().item() < 1e-6 for grad in torch.autograd.grad(term, heads))


def test_what_is_between_heads_is_added_to_the_sum_of_their_losses_and_to_nothing_else() -> None:
    outputs, targets = scores(5, 4, heads=2), torch.tensor([0, 1, 2, 3, 0])
    loss = torch.nn.functional.cross_entropy
    plain = total_loss(loss, tuple(outputs), targets)
    assert plain == loss(outputs[0], targets) + loss(outputs[1], targets)
    assert total_loss(loss, tuple(outputs), targets, Distil()) == plain + Distil()(outputs)
    assert total_loss(loss, outputs[0], targets, Distil()) == loss(outputs[0], targets)


def test_a_weight_that_teaches_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="the weight of Distil is a positive number, not 0"):
        Distil(0)
