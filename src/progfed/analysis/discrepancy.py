"""Alignment alpha_t and norm discrepancy q_t of the convergence section (Sec. 3.2, Theorem 3.3), measured on a run.

With x_t^s the sub-model of round t, and x_t the full model that has the same E_1..E_s and is as initialised elsewhere:

    alpha_t = min(1, <grad f(x_t)|E_s, grad f^s(x_t^s)|E_s> / ||grad f^s(x_t^s)|E_s||^2)
    q_t     = ||grad f(x_t)|| / (alpha_t ||grad f^s(x_t^s)|E_s||)

What the paper leaves open is decided like this. `f` is the mean loss over the training examples of all clients, or over
a sample of them that is the same for all rounds; nothing is augmented and nothing drops out. The projection |E_s keeps
the parts that the sub-model shares with the full model: E_1..E_s before the last stage, since G_s is not G_S, and all
of it in the last, so that alpha_t = q_t = 1 there, as the paper notes. A symmetric U-Net shares its one head as well.
Where alpha_t is not positive q_t has no meaning, and is None.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, nn

from progfed import rng
from progfed.analysis.source import Trained
from progfed.blocks import Progressive, hold
from progfed.client.kernels import one_thread
from progfed.errors import StorageError, UsageError
from progfed.files import read_regular, replace_file
from progfed.population import Examples, FederatedData
from progfed.recipe.recipe import Loss
from progfed.runs.snapshots import read_model
from progfed.schedule import Phase
from progfed.tensors import Tensors, leaves, of_parts

FILE = "discrepancy.jsonl"
_NUMBERS = 2**22  # of a batch of inputs: memory, not the result, depends on it


@dataclass(frozen=True)
class Discrepancy:
    """alpha_t and q_t after a round, and the two norms they are made of."""

    round: int
    stage: int
    alpha: float | None
    q: float | None
    gradient: float
    submodel_gradient: float


def measure(trained: Trained, *, examples: int | None = None) -> Iterator[Discrepancy]:
    """alpha_t and q_t of every model that the run has on disk, in order.

    Args:
        trained: The run, as `open_run` returns it.
        examples: How many training examples the gradients are taken over; None: all.
    """
    pieces = tuple(sampled(trained.data, examples, trained.seed))
    for number, stage, path in trained.models:
        with one_thread():
            yield _at_round(trained, number, stage, read_model(path), pieces)


def _at_round(trained: Trained, number: int, stage: int, tensors: Tensors, pieces: Sequence[Examples]) -> Discrepancy:
    """alpha_t and q_t of one model x_t^s, by its gradients over these pieces of the training examples."""
    model, whole = trained.model, Phase(trained.full, 1)
    x_t = hold(tensors, model, whole, seed=trained.seed)
    full = gradient(model.at(trained.full, x_t), pieces, trained.loss)
    sub = full if stage == trained.full else gradient(model.at(stage, tensors), pieces, trained.loss)
    alpha, q, norm = compare(full, of_parts(sub, shared(model, stage)))
    return Discrepancy(number, stage, alpha, q, _norm(full), norm)


def compare(full: Mapping[str, Tensor], projected: Mapping[str, Tensor]) -> tuple[float | None, float | None, float]:
    """alpha_t, q_t and ||grad f^s|E_s|| from the gradient of f and the projected one of f^s.

    >>> compare({"E1": torch.tensor([3.0]), "G2": torch.tensor([4.0])}, {"E1": torch.tensor([6.0])})
    (0.5, 1.6666666666666667, 6.0)
    """
    squared, norm = _dot(projected, projected), _norm(projected)
    if squared == 0:
        return None, None, norm
    alpha = min(1.0, _dot(projected, full) / squared)
    return alpha, _norm(full) / (alpha * norm) if alpha > 0 else None, norm


def shared(model: Progressive, stage: int) -> tuple[str, ...]:
    """The parts that M^s and the full model have in common."""
    whole = model.parts(Phase(model.stages, 1))
    return tuple(part for part in model.parts(Phase(stage, 1)) if part in whole)


def gradient(module: nn.Module, pieces: Sequence[Examples], loss: Loss) -> Tensors:
    """The gradient of the mean loss over examples, summed in double precision."""
    module.eval()
    names, learning = zip(*module.requires_grad_(True).named_parameters(), strict=True)
    total = [torch.zeros_like(parameter, dtype=torch.float64) for parameter in learning]
    for piece in pieces:
        value = loss(module(piece.inputs), piece.targets) * piece.number
        found = torch.autograd.grad(value, learning, allow_unused=True, materialize_grads=True)
        torch._foreach_add_(total, [one.double() for one in found])
    number = sum(piece.number for piece in pieces)
    return {name: value / number for name, value in zip(names, total, strict=True)}


def sampled(data: FederatedData, number: int | None, seed: int) -> Iterator[Examples]:
    """The training examples of all clients, or `number` of them drawn by the seed, in batches.

    They are augmented once, by the seed: training sees no others, and some data become numbers only by augmentation.
    """
    total = sum(data.sizes)
    if number is not None and number < 1:
        raise UsageError(f"a gradient needs at least 1 example, not {number}")
    drawn = None if number is None or number >= total else rng.sample(total, number, seed, "analysis")
    ends = list(accumulate(data.sizes))
    for client, (size, end) in enumerate(zip(data.sizes, ends, strict=True)):
        own = range(size) if drawn is None else [at - end + size for at in drawn if end - size <= at < end]
        if not own:
            continue
        examples = data.client(client).take(torch.tensor(own))
        if data.augment is not None:
            examples = data.augment(examples, rng.generator(seed, "analysis", "augment", client))
        batch = max(1, _NUMBERS // max(1, sum(leaf[0].numel() for leaf in leaves(examples.inputs))) // 4)
        for start in range(0, examples.number, batch):
            yield examples.take(slice(start, start + batch))


def write(found: Sequence[Discrepancy], run: Path) -> Path:
    """Write the measurements of a run beside its records, one line each; returns the file."""
    path = run / FILE
    replace_file(path, "".join(json.dumps(asdict(one)) + "\n" for one in found).encode())
    return path


def read(run: Path) -> tuple[Discrepancy, ...]:
    """The measurements of a run; empty where it was not analysed."""
    path = run / FILE
    if not path.exists():
        return ()
    try:
        found = tuple(Discrepancy(**json.loads(line)) for line in read_regular(path).decode().splitlines())
        numbers = [value for one in found for value in (one.round, one.stage, one.gradient, one.submodel_gradient)]
        if not all(math.isfinite(value) for value in (*numbers, *(one.q or 0 for one in found))):
            raise ValueError("a value is not a number")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise StorageError(f"{path} is damaged ({error}): make it again with `progfed analyse`") from error
    return found


def _norm(tensors: Mapping[str, Tensor]) -> float:
    return math.sqrt(_dot(tensors, tensors))


def _dot(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    """The inner product over the names of `left`."""
    return sum(float(value.double().flatten() @ right[name].double().flatten()) for name, value in left.items())
