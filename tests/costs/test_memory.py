"""Peak memory of training: closed forms by hand, laws, and torch's own allocator as an independent witness."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from progfed.blocks import Progressive
from progfed.client.kernels import fast_inputs
from progfed.client.replica import Replica, Turn, total_loss
from progfed.client.sgd import Sgd
from progfed.costs.memory import PhaseMemory, _supervision, in_pieces, phase_memory
from progfed.losses import Distil
from progfed.models.convnet import convnet_cifar, convnet_mnist
from progfed.models.resnet import resnet18
from progfed.recipe.recipe import Local
from progfed.schedule import Phase, end_to_end, every_head, freezing, in_turns, within
from tiny import tiny_model


def summed(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs.sum()


LOCAL = Local(batch=5, loss=summed)


def products(*, batch: int = 5, middle: nn.Module | None = None, **local: float) -> PhaseMemory:
    """Two matrix products, 4 -> 3 -> 2, without biases."""
    model = Progressive(
        blocks=(lambda: nn.Sequential(nn.Linear(4, 3, bias=False), *([middle] if middle else [])),),
        heads=(lambda: nn.Linear(3, 2, bias=False),),
        example=torch.zeros(1, 4),
    )
    return phase_memory(model, Phase(1, 1), replace(LOCAL, batch=batch, **local))  # type: ignore[arg-type]


def test_two_matrix_products_need_what_a_hand_counts() -> None:
    weights = 4 * (4 * 3 + 3 * 2)
    inputs, hidden, outputs, labels, loss = 4 * 5 * 4, 4 * 5 * 3, 4 * 5 * 2, 8 * 5, 4
    found = products()
    assert (found.weights, found.gradients, found.optimizer) == (weights, weights, 0)
    # the outputs are not needed to go back through a sum
    assert found.activations == inputs + hidden + labels + loss
    assert outputs < hidden
    # in the backward pass of the second product: the gradients of its weight and of its input, and that of the loss
    assert found.peak == weights + found.activations + 4 * 3 * 2 + hidden + loss


def test_momentum_and_a_pull_to_the_start_cost_as_much_as_the_weights_each() -> None:
    plain = products()
    for local, times in (({"momentum": 0.9}, 1), ({"prox": 0.1}, 1), ({"momentum": 0.9, "prox": 0.1}, 2)):
        found = products(**local)
        assert found.optimizer == times * plain.weights
        assert found.peak == plain.peak + times * plain.weights


def test_views_cost_nothing_and_a_kept_output_its_size() -> None:
    assert products(middle=nn.Flatten()) == products()
    # tanh goes back through its own output, the product after it through the same
    assert products(middle=nn.Tanh()).activations == products().activations
    # but the square of the input needs the input as well
    assert products(middle=nn.SiLU()).activations == products().activations + 4 * 5 * 3


def test_activations_grow_with_the_batch_and_weights_do_not() -> None:
    one, two, three = (products(batch=batch) for batch in (4, 8, 12))
    assert two.activations - one.activations == three.activations - two.activations > 0
    assert one.weights == two.weights == three.weights


@pytest.mark.parametrize("model", [tiny_model(), convnet_mnist(classes=10), convnet_cifar()], ids=lambda m: m.name)
def test_a_deeper_stage_never_needs_less(model: Progressive) -> None:
    found = [phase_memory(model, Phase(stage, 1), Local(momentum=0.9)) for stage in range(1, model.stages + 1)]
    for shallow, deep in pairwise(found):
        assert shallow.peak <= deep.peak
        assert shallow.activations <= deep.activations


def test_a_warm_up_that_trains_only_the_new_block_needs_less() -> None:
    model, local = convnet_cifar(), Local(momentum=0.9)
    frozen, whole = (phase_memory(model, Phase(4, 1, trains=trains), local) for trains in ((4,), ()))
    assert frozen.weights == whole.weights
    assert frozen.gradients == frozen.optimizer < whole.gradients
    assert frozen.activations < whole.activations
    assert frozen.peak < whole.peak


def test_several_heads_need_more_than_one() -> None:
    model = tiny_model()
    one, two = (phase_memory(model, Phase(3, 1, heads=heads), Local()) for heads in ((3,), (1, 3)))
    assert one.peak < two.peak


def looking(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss that cannot be computed from shapes alone."""
    return outputs.sum() if outputs.sum().item() == 0 else -outputs.sum()


def only_from_data(outputs: Tensor, targets: Tensor) -> Tensor:
    """A loss whose targets nobody can guess."""
    return (outputs * targets.view(len(outputs), 7, 11).sum()).sum()


@pytest.mark.parametrize("make", [tiny_model, convnet_mnist, convnet_cifar])
def test_a_step_that_looks_at_values_is_taken_on_zeros_and_needs_the_same(make: Callable[[], Progressive]) -> None:
    plain = phase_memory(make(), Phase(3, 1), Local(loss=summed))
    looked = phase_memory(make(), Phase(3, 1), Local(loss=looking))
    # to look at a sum, the sum has to be there: 4 bytes at the end of the forward pass
    assert replace(looked, peak=plain.peak) == plain
    assert abs(looked.peak - plain.peak) <= 4
    assert phase_memory(make(), Phase(3, 1), Local(loss=only_from_data)) == plain


def test_tokens_and_numbers_can_be_targets() -> None:
    tokens = Progressive(
        blocks=(lambda: nn.Embedding(11, 8),),
        heads=(lambda: nn.Linear(8, 11),),
        example=torch.zeros(1, 6, dtype=torch.int64),
    )
    entropy = nn.functional.cross_entropy
    found = phase_memory(tokens, Phase(1, 1), Local(loss=lambda o, t: entropy(o.flatten(0, 1), t.flatten())))
    assert found.weights == 4 * (11 * 8 + 8 * 11 + 11)
    assert found.peak > phase_memory(tokens, Phase(1, 1), Local(loss=lambda o, t: o.sum())).peak
    numbers = phase_memory(tiny_model(), Phase(1, 1), Local(loss=nn.functional.binary_cross_entropy_with_logits))
    assert numbers.peak > 0


def test_counting_draws_from_nobodys_generator() -> None:
    before = torch.get_rng_state()
    phase_memory(tiny_model(), Phase(3, 1), Local())
    phase_memory(tiny_model(), Phase(3, 1), Local(loss=looking))
    assert torch.equal(torch.get_rng_state(), before)


def allocated(model: Progressive, phase: Phase, local: Local, *, pieces: int = 1) -> int:
    """The peak of a real step of any turn, on so many pieces of a batch, from the events of torch's allocator."""
    replica = Replica(model, phase, "cpu")
    return max(_allocated(model, replica, turn, local, pieces) for turn in replica.turns)


def _allocated(model: Progressive, replica: Replica, turn: Turn, local: Local, pieces: int) -> int:
    for name, value in replica.module.named_parameters():
        value.requires_grad_(name in turn.params)
    step = Sgd(list(turn.params.values()), local, 0.01)
    inputs = fast_inputs(torch.zeros(local.batch, *model.example.shape[1:]))
    targets = torch.zeros(local.batch, dtype=torch.int64)

    def whole() -> None:
        for number in range(1, pieces + 1):
            loss = total_loss(local.loss, turn.module(inputs), targets, local.between)
            step(loss / pieces if pieces > 1 else loss, whole=number == pieces)

    whole()  # so that momentum is there
    velocity = sum(tensor.nbytes for tensor in step._velocity)
    before = sum(tensor.nbytes for tensor in (*replica.state.values(), inputs, targets)) + velocity
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        whole()
    events = seen.profiler.kineto_results.events()  # type: ignore[union-attr]
    now = peak = before
    for event in sorted((event for event in events if event.name() == "[memory]"), key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


@pytest.mark.parametrize("pieces", [1, 5])
@pytest.mark.parametrize("deepest", [1, 3])
def test_the_peak_in_turns_and_pieces_is_what_torchs_allocator_sees(deepest: int, pieces: int) -> None:
    model, local = convnet_cifar(heads="grid"), Local(batch=20, momentum=0.9, between=Distil())
    phase, cut = within(in_turns(every_head(1, stages=4))[0], deepest), in_pieces(local, 20 // pieces)
    seen = allocated(model, phase, replace(cut, accumulate=1), pieces=pieces)
    assert phase_memory(model, phase, cut).peak == pytest.approx(seen, rel=0.03)


@pytest.mark.parametrize(("make", "stage"), [(convnet_cifar, 1), (convnet_cifar, 4), (convnet_mnist, 3)])
def test_the_peak_is_what_torchs_allocator_sees_within_one_percent(make: Callable[[], Progressive], stage: int) -> None:
    model, local = make(), Local(batch=50, momentum=0.9)
    found = phase_memory(model, Phase(stage, 1), local).peak
    assert found == pytest.approx(allocated(model, Phase(stage, 1), local), rel=0.01)


def test_a_squared_error_is_counted_with_targets_like_the_outputs(recwarn: pytest.WarningsRecorder) -> None:
    """One label per example would be spread over the outputs, and torch would warn of it."""
    output = torch.zeros(10, 1)
    loss, targets = _supervision(output, nn.functional.mse_loss)
    assert targets.shape == output.shape
    assert loss is nn.functional.mse_loss
    assert not recwarn.list


# --- frozen blocks --------------------------------------------------------------------------------------------------


def test_a_frozen_block_keeps_nothing_for_the_backward_pass() -> None:
    replica = Replica(tiny_model(), Phase(3, 1, trains=(3,)), "cpu")
    kept: list[tuple[int, ...]] = []

    def keep(tensor: Tensor) -> Tensor:
        kept.append(tuple(tensor.shape))
        return tensor

    inputs = torch.zeros(7, 6)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        for number, block in enumerate((replica.module.E1, replica.module.E2, replica.module.E3), start=1):
            inputs = block(inputs)
            assert inputs.requires_grad == bool(kept) == (number == 3)


def test_freezing_takes_resnet_18_below_sixty_percent_of_end_to_end_as_torchs_allocator_sees_it_too() -> None:
    model, local = resnet18(), Local(batch=20)
    (whole,), frozen = end_to_end(8, stages=4), freezing(8, stages=4)
    peaks = {phase: phase_memory(model, phase, local).peak for phase in (whole, *frozen)}
    highest = max(frozen, key=lambda phase: peaks[phase])
    assert highest.stage == 4
    assert peaks[highest] < 0.6 * peaks[whole]
    # large convolutions copy their weights for themselves, so the allocator sees more than what is counted
    assert allocated(model, highest, local) < 0.6 * allocated(model, whole, local)
