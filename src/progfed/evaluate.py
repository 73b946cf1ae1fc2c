"""How good a model is: accuracy for classes and for tokens, Dice for segmentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from progfed.blocks import Progressive, load
from progfed.client.kernels import fast_inputs, fast_layout
from progfed.costs.live import Live
from progfed.errors import DataError, ProgfedError, UsageError
from progfed.population import Examples, misfit, not_finite
from progfed.schedule import Phase
from progfed.tensors import Tensors, finite, tree_map

BATCH = 250
"""Examples that are evaluated at once, where they are small."""

ROOM = 2 * 2**30
"""Bytes that the tensors of a batch may take while it is evaluated; a single example may take more."""

Metric = Callable[[Tensor, Tensor], Tensor]
"""Outputs and targets of a batch -> the score of each example (or position), as a vector."""


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Whether the largest output is at the target, for each example.

    Args:
        outputs: Scores `[batch, classes, …]`.
        targets: Labels `[batch, …]`.

    Returns:
        1 or 0 for each example; where an example has several positions, their average.
    """
    hits = (outputs.argmax(1) == targets).double()
    return hits.flatten(1).mean(1) if hits.dim() > 1 else hits


def token_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Whether the largest score is at the target, for each position; all positions count alike.

    Args:
        outputs: Scores `[batch, time, vocabulary]`.
        targets: Token numbers `[batch, time]`; -100 where a position does not count.

    Returns:
        1 or 0 for each position that counts.

    >>> token_accuracy(torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]]), torch.tensor([[0, 1, -100]]))
    tensor([1., 0.], dtype=torch.float64)
    """
    return (outputs.argmax(-1) == targets)[targets != -100].double()


def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """The Dice score 2|A n B| / (|A| + |B|) of each example, averaged over its foreground classes.

    A class that is absent from both prediction and truth counts as 1.

    Args:
        outputs: Scores `[batch, classes, …]`, or `[batch, regions, …]`.
        targets: Integer labels `[batch, …]` with background 0; or, in the shape of the outputs, overlapping regions
            (such as whole tumour, core, enhancing), which are predicted where the output is positive.
    """
    if outputs.shape == targets.shape:
        predicted, truth = outputs > 0, targets > 0.5
    else:
        classes = torch.arange(1, outputs.shape[1]).view(1, -1, *[1] * (targets.dim() - 1))
        predicted, truth = outputs.argmax(1, keepdim=True) == classes, targets.unsqueeze(1) == classes
    overlap = (predicted & truth).flatten(2).sum(2).double()
    total = predicted.flatten(2).sum(2) + truth.flatten(2).sum(2)
    return torch.where(total > 0, 2 * overlap / total.clamp(min=1), torch.ones_like(overlap)).mean(1)


def evaluate(module: nn.Module, examples: Examples, metric: Metric = accuracy, *, batch: int | None = None) -> float:
    """The mean score of a model over some examples, in percent.

    Args:
        module: The model, such as `Progressive.at` returns it.
        examples: What it is tested on.
        metric: The score: `accuracy`, `token_accuracy`, `dice`, or a function like them.
        batch: How many examples are evaluated at once; None: see `batch_size`.
    """
    batch = batch or batch_size(module, examples)
    return percent([scores(module, examples, metric, range(0, examples.number, batch))])


def batch_size(module: nn.Module, examples: Examples) -> int:
    """How many examples are evaluated at once: 250, or fewer where the model would need more than 2 GB for them.

    It depends on the module and the shape of an example, never on the machine: torch's kernels give outputs whose last
    bits depend on the size of the batch, and a score must not depend on the number of workers or the free memory.
    """
    some = min(2, examples.number)
    inputs = examples.take(slice(0, some)).inputs
    training = module.training
    try:
        peak = _peak(module.eval(), inputs)
    finally:
        module.train(training)
    return max(1, min(BATCH, some * ROOM // max(1, peak)))


def _peak(module: nn.Module, inputs: Any) -> int:
    """The most bytes that the module's forward holds at any moment, without its weights."""
    tensors = dict(chain(module.named_parameters(), module.named_buffers()))
    shapes = {name: value.to("meta") for name, value in tensors.items()}
    with torch.inference_mode():
        try:
            with torch.device("meta"), Live() as live:
                functional_call(module, shapes, (fast_inputs(tree_map(lambda leaf: leaf.to("meta"), inputs)),))
        except Exception:  # a forward that looks at values cannot be followed by shapes alone: it is really run
            device = next(iter(tensors.values()), torch.empty(0)).device
            with Live() as live:
                module(fast_inputs(tree_map(lambda leaf: leaf.to(device), inputs)))
    return int(live.peak)


def scores(module: nn.Module, examples: Examples, metric: Metric, starts: range, *, device: str = "cpu") -> Tensor:
    """The scores of the examples in the batches that begin at `starts`, in order."""
    module.eval()
    found: list[Tensor] = []
    with torch.inference_mode():
        for start in starts:
            piece = examples.take(slice(start, start + starts.step))
            inputs = tree_map(lambda leaf: leaf.to(device), fast_inputs(piece.inputs))
            outputs = _last(module(inputs)).cpu()
            if not finite({"outputs": outputs}) and (wrong := not_finite(examples)):
                raise DataError(f"the test set has {wrong}, and the model cannot be evaluated on them: mend them")
            found.append(metric(outputs, piece.targets))
    return torch.cat(found) if found else torch.empty(0, dtype=torch.float64)


def check_test(model: Progressive, phase: Phase, test: Examples, metric: Metric) -> None:
    """Refuse a test set on which the model of a phase or the metric fails; tried on one example, before training."""
    one, outputs, given = test.take(slice(0, 1)), None, None
    try:
        with torch.inference_mode():
            outputs = _last(model.phase_module(phase).eval()(one.inputs))
            given = metric(outputs, one.targets)
    except ProgfedError:
        raise
    except Exception as error:
        raise misfit(error, one, model.example, "the test set", outputs=outputs) from error
    if not isinstance(given, Tensor) or given.dim() != 1:
        shape = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise UsageError(f"the metric gives {shape}: a metric returns a vector, the score of each example of a batch")


def percent(pieces: Sequence[Tensor]) -> float:
    """The mean of all scores, in percent; the same bits however the examples were divided into pieces."""
    joined = torch.cat(list(pieces))
    return 100 * float((joined if joined.is_floating_point() else joined.double()).mean())


class Examiner:
    """Scores the models of a run on the same test set again and again; the module of the current phase is kept."""

    def __init__(self, model: Progressive, test: Examples, metric: Metric, *, device: str = "cpu") -> None:
        self._model, self._test, self._metric, self._device = model, test, metric, device
        self._phase: Phase | None = None
        self._batches: dict[Phase, int] = {}

    def __call__(self, phase: Phase, params: Tensors, starts: range) -> Tensor:
        """The scores of a phase's model with the weights `params`, on the batches that begin at `starts`."""
        if phase != self._phase:
            module = self._model.phase_module(phase).to(self._device)
            self._module, self._phase = fast_layout(module), phase
        load(self._module, params)
        return scores(self._module, self._test, self._metric, starts, device=self._device)

    def evaluate(self, phase: Phase, params: Tensors) -> float:
        """The mean score on the whole test set, in percent."""
        return percent([self(phase, params, *self.shares(phase, 1))])

    def shares(self, phase: Phase, workers: int) -> list[range]:
        """The batches of the test set, divided among some workers, in order: their scores joined are the whole's."""
        if phase not in self._batches:
            self._batches[phase] = batch_size(fast_layout(self._model.phase_module(phase)), self._test)
        number, batch = self._test.number, self._batches[phase]
        batches = -(-number // batch)
        borders = [min(number, batches * worker // workers * batch) for worker in range(workers + 1)]
        return [range(start, stop, batch) for start, stop in pairwise(borders)]


def _last(outputs: Any) -> Tensor:
    """The output itself; the deepest head's where a phase uses several heads."""
    final: Tensor = outputs[-1] if isinstance(outputs, tuple) else outputs
    return final
