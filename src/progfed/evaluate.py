"""How good a model is: its metrics on a test set, the same bits however the work is shared out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from progfed.blocks import Progressive, load
from progfed.client.kernels import fast_inputs, fast_layout
from progfed.costs.live import Live
from progfed.errors import DataError, ProgfedError, UsageError
from progfed.metrics import Metric, Scores, named
from progfed.metrics import accuracy as accuracy
from progfed.metrics import dice as dice
from progfed.metrics import token_accuracy as token_accuracy
from progfed.population import Examples, Held, misfit, not_finite
from progfed.schedule import Phase
from progfed.tensors import Tensors, finite, tree_map

BATCH = 250
"""Examples that are evaluated at once, where they are small."""

ROOM = 2 * 2**30
"""Bytes that the tensors of a batch may take while it is evaluated; a single example may take more."""

Judged = Scores | Metric | Mapping[str, Metric]
"""What a model is judged by: one metric, or several by name; a bare function gives scores in percent."""

OUTPUTS, TARGETS = "", " "
"""The names of the model's outputs and of the targets among the scores by metric: no metric has them."""


def evaluate(module: nn.Module, examples: Held, metric: Judged = accuracy) -> float:
    """A metric of a model over some examples, or the first of several.

    There is no size of a batch to choose: `batch_size` is the only one, so that no choice can change a score.

    Args:
        module: The model, such as `Progressive.at` returns it.
        examples: What it is tested on.
        metric: A `Metric`, several by name, or a function such as `accuracy`, whose scores are averaged, in percent.
    """
    metrics, starts = named(metric), range(0, examples.number, batch_size(module, examples))
    found = values(metrics, [scores(module, examples, metrics, starts)])
    return next(iter(found.values()))


def batch_size(module: nn.Module, examples: Held) -> int:
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


def scores(
    module: nn.Module, examples: Held, metrics: Mapping[str, Metric], starts: range, *, device: str = "cpu"
) -> Tensors:
    """What the metrics need of the batches that begin at `starts`, in order: the scores of each example by metric,
    and the outputs themselves where a metric is of all predictions."""
    module.eval()
    found: dict[str, list[Tensor]] = {}
    with torch.inference_mode():
        for start in starts:
            piece = examples.take(slice(start, start + starts.step))
            inputs = tree_map(lambda leaf: leaf.to(device), fast_inputs(piece.inputs))
            outputs = _last(module(inputs)).cpu()
            if not finite({"outputs": outputs}) and (wrong := not_finite(examples)):
                raise DataError(f"the test set has {wrong}, and the model cannot be evaluated on them: mend them")
            for name, metric in metrics.items():
                if metric.of == "each":
                    found.setdefault(name, []).append(metric.scores(outputs, piece.targets))
            if any(metric.of == "all" for metric in metrics.values()):
                found.setdefault(OUTPUTS, []).append(outputs)
                found.setdefault(TARGETS, []).append(piece.targets)
    return {name: torch.cat(pieces) for name, pieces in found.items()}


def values(metrics: Mapping[str, Metric], pieces: Sequence[Tensors]) -> dict[str, float]:
    """The metrics by name, from what `scores` found of the pieces of a test set; the same bits for any pieces."""
    names = dict.fromkeys(name for piece in pieces for name in piece)  # a piece without examples has none
    joined = {name: torch.cat([piece[name] for piece in pieces if name in piece]) for name in names}
    found: dict[str, float] = {}
    with torch.inference_mode():
        for name, metric in metrics.items():
            each = metric.of == "each"
            found[name] = metric.mean(joined[name]) if each else metric.value(joined[OUTPUTS], joined[TARGETS])
            if not math.isfinite(found[name]):
                raise UsageError(
                    f"the metric {name} is {found[name]} on the test set: mend it, or lower the learning rate if the "
                    "model's outputs have grown without bounds"
                )
    return found


def check_test(model: Progressive, phase: Phase, test: Held, metric: Judged) -> None:
    """Refuse a test set on which the phase's model or a metric fails, before anything is trained.

    A few examples are tried; for a metric of all predictions, their outputs stand for all, since one that compares
    examples may need every one of them.
    """
    few, outputs = test.take(slice(0, 2)), None
    try:
        with torch.inference_mode():
            outputs = _last(model.phase_module(phase).eval()(few.inputs))
            for each in named(metric).values():
                if each.of == "each":
                    each.scores(outputs[:1], few.targets[:1])
                elif isinstance(test, Examples):  # the targets of a data set are not read before they are needed
                    all_of_them = torch.arange(test.number) % len(outputs)
                    each.value(outputs[all_of_them], test.targets)
    except ProgfedError:
        raise
    except Exception as error:
        raise misfit(error, few, model.example, "the test set", outputs=outputs) from error


class Examiner:
    """Scores the models of a run on the same test set again and again; the module of the current phase is kept."""

    def __init__(self, model: Progressive, test: Held, metric: Judged, *, device: str = "cpu") -> None:
        self._model, self._test, self._metrics, self._device = model, test, named(metric), device
        self._phase: Phase | None = None
        self._batches: dict[Phase, int] = {}

    def __call__(self, phase: Phase, params: Tensors, starts: range) -> Tensors:
        """What the metrics need of a phase's model with these tensors, on the batches that begin at `starts`."""
        if phase != self._phase:
            module = self._model.phase_module(phase).to(self._device)
            self._module, self._phase = fast_layout(module), phase
        load(self._module, params)
        return scores(self._module, self._test, self._metrics, starts, device=self._device)

    def measure(self, phase: Phase, params: Tensors) -> dict[str, float]:
        """Every metric on the whole test set, by name."""
        return self.values([self(phase, params, *self.shares(phase, 1))])

    def values(self, pieces: Sequence[Tensors]) -> dict[str, float]:
        """Every metric, from the pieces of the test set that were shared out."""
        return values(self._metrics, pieces)

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
