"""Peak memory of training a phase: one step is taken, and the storages that are alive in it are followed."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from progfed import rng
from progfed.blocks import Progressive, state
from progfed.client.kernels import Draws, fast_inputs, fast_layout
from progfed.client.replica import total_loss, turns_of
from progfed.client.torch_optimizer import stepper
from progfed.client.visit import ClientVisit, Place
from progfed.costs.live import Live
from progfed.costs.phase import zeroed
from progfed.population import Examples
from progfed.recipe.method import PLAIN, Method
from progfed.recipe.recipe import Local, Loss
from progfed.recipe.travel import travel
from progfed.schedule import Phase
from progfed.tensors import aside, grouped, leaves, tree_map
from progfed.wire.engine import ClientState, Task

_SMALL = 100_000


@dataclass(frozen=True)
class PhaseMemory:
    """Bytes that a step of training holds.

    `weights` are parameters and buffers, `gradients` those of what is trained, `optimizer` its state, such as momentum,
    and FedProx's start. `activations` is what stays from the forward pass for the backward one, the batch included.
    `peak` is the most that is alive at any moment; activations go while gradients come, so it is less than the sum
    where the step needs no large temporary tensors.
    """

    weights: int
    gradients: int
    optimizer: int
    activations: int
    peak: int


def phase_memory(model: Progressive, phase: Phase, local: Local, method: Method = PLAIN) -> PhaseMemory:
    """The memory of a step on a whole batch, in the form in which a client trains the phase's module.

    Of a phase that is trained in turns, that of the turn which needs the most; the client holds all its weights.
    A small step is really taken, on zeros. Of a larger one only shapes are computed, which gives the same numbers in
    less time, unless a layer or the loss looks at values.
    """
    plain = _phase_memory(model, phase, local)
    return plain if method == PLAIN else _with_method(plain, model, phase, local, method)


def _phase_memory(model: Progressive, phase: Phase, local: Local) -> PhaseMemory:
    if len(phase.turns) > 1:
        return _of_turns(model, phase, local)
    module = _shapes(model, phase)
    held = sum(tensor.numel() for tensor in (*module.parameters(), *module.buffers()))
    numbers = held + local.batch * sum(leaf.numel() for leaf in leaves(model.example))
    if numbers > _SMALL:
        with suppress(Exception):  # whatever is wrong with the step itself is met again, and raised, below
            return _step(module, model.example, local, FakeTensorMode(allow_non_fake_inputs=True))
        module = _shapes(model, phase)
    return _step(module, model.example, local, nullcontext())


def in_pieces(local: Local, piece: int) -> Local:
    """How a client trains that takes so many examples of a batch at once: as far as memory goes.

    While a piece is trained on, the gradients of those before are held, as with `accumulate`.
    """
    if piece >= local.batch:
        return local
    return replace(local, batch=piece, accumulate=max(2, local.accumulate))


def _of_turns(model: Progressive, phase: Phase, local: Local) -> PhaseMemory:
    """The memory of the turn that needs the most, on a client that holds the weights of all of them."""
    module = _shapes(model, phase)
    weights = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    turns = [_phase_memory(model, turn, local) for turn in phase.turns]
    most = max(turns, key=lambda turn: turn.peak - turn.weights)
    return replace(most, weights=weights, peak=most.peak - most.weights + weights)


def _shapes(model: Progressive, phase: Phase) -> nn.Module:
    """The module that a client trains, in the layout of a replica, without memory for its tensors."""
    with torch.device("meta"):
        return fast_layout(model.shapes(phase), Draws()).train()


def _step(module: nn.Module, example: Any, local: Local, mode: AbstractContextManager[Any]) -> PhaseMemory:
    with rng.default(0, "memory"), mode, Live() as live:  # dropout draws
        module = zeroed(module)
        weights = live.now
        learning = [p for p in module.parameters() if p.requires_grad]
        optimizer = stepper(learning, local, 0.0)
        optimizer(_any_loss(learning))
        optimizer.finish()  # momentum is there from the first step on
        held = live.now
        if local.accumulate > 1:
            optimizer(_any_loss(learning))  # the gradients of a batch before wait for the step
        waiting = live.now
        inputs = fast_inputs(tree_map(lambda leaf: _zeros(local.batch, leaf), example))
        live.peak = live.now
        outputs = module(inputs)
        supervise, targets = live.unseen(_supervision, outputs, local.loss)
        loss = total_loss(supervise, outputs, targets, local.between)
        del outputs
        activations = live.now - waiting
        optimizer(loss)
        optimizer.finish()
        gradients = sum(p.nbytes for p in learning)
        return PhaseMemory(weights, gradients, held - weights, activations, live.peak)


def _with_method(plain: PhaseMemory, model: Progressive, phase: Phase, local: Local, method: Method) -> PhaseMemory:
    """The same of a client's second visit with a method: what it keeps and is sent counts as the optimizer's."""
    if plain.weights + plain.activations > 4 * _SMALL:
        with suppress(Exception):
            return _visited(plain, model, phase, local, method, FakeTensorMode(allow_non_fake_inputs=True))
    return _visited(plain, model, phase, local, method, nullcontext())


def _visited(
    plain: PhaseMemory,
    model: Progressive,
    phase: Phase,
    local: Local,
    method: Method,
    mode: AbstractContextManager[Any],
) -> PhaseMemory:
    shapes = _shapes(model, phase)
    crossing = travel(model, phase, method, shapes)
    with rng.default(0, "memory"), mode:
        start = {name: torch.zeros(value.shape) for name, value in state(shapes).items()}
        with Live() as live:
            module = zeroed(shapes)
            sent = grouped({name: torch.zeros(shape) for name, shape in crossing.down.items() if aside(name)})
            inputs = fast_inputs(tree_map(lambda leaf: _zeros(local.batch, leaf), model.example))
            with torch.no_grad():
                outputs = live.unseen(module, inputs)
            loss, targets = live.unseen(_supervision, outputs, local.loss)
            del outputs
            place = Place(
                module=module,
                params={name: p for name, p in module.named_parameters() if p.requires_grad},
                trained=crossing.trained,
                turns=turns_of(model, phase, module),
                parts=frozenset(model.parts(phase)),
                lasting=frozenset(model.parts(phase)),
                local=local if loss is local.loss else replace(local, loss=loss),
                device="cpu",
                example=model.example,
            )
            batch, kept = Examples(inputs, targets), ClientState()
            for _ in range(2):  # what a client keeps is there from its second visit on
                live.peak = live.now
                visit = ClientVisit(
                    Task(0, 1, phase, 1.0, b""),
                    place,
                    batch,
                    lambda held: iter([batch, batch]),  # momentum is there from the second step on
                    start=start,
                    sent=sent,
                    remembered=kept,
                    rehearsal=True,
                )
                method.train(visit)
                visit.finish()
                kept = visit.state()
            beside = sum(value.nbytes for group in (*sent.values(), *kept.values()) for value in group.values())
            return replace(plain, optimizer=plain.optimizer + beside, peak=live.peak)


def _any_loss(learning: list[nn.Parameter]) -> Tensor:
    """A loss that gives every parameter a gradient."""
    return sum((p.sum() for p in learning), torch.zeros(()))


def _zeros(batch: int, leaf: Tensor) -> Tensor:
    return torch.zeros((batch, *leaf.shape[1:]), dtype=leaf.dtype)


def _supervision(outputs: Any, loss: Loss) -> tuple[Loss, Tensor]:
    """The loss, with targets that it takes: a label per example or position, one per token, or numbers like outputs.

    A loss that takes none of them is replaced by a sum: it is small beside the model.
    """
    output = leaves(outputs)[-1].detach()
    batch, *rest = output.shape
    labels, tokens = (torch.zeros((batch, *kept), dtype=torch.int64) for kept in (rest[1:], rest[:-1]))
    for targets in (labels, tokens, torch.zeros_like(output)):
        with suppress(Exception), torch.no_grad(), warnings.catch_warnings():
            warnings.filterwarnings("error", message="Using a target size")  # which would spread one over the other
            if loss(output, targets).dim() == 0:
                return loss, targets
    return lambda output, targets: output.sum(), labels
