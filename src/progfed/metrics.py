"""What a model is judged by: scores of examples, functions of all predictions, and how their values are told."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from progfed.errors import UsageError

Scores = Callable[[Tensor, Tensor], Tensor]
"""Outputs and targets of a batch -> the score of each example (or position), as a vector."""


@dataclass(frozen=True)
class Metric:
    """A number that says how good a model is on a test set, and how it is read.

    Args:
        function: Takes outputs and targets, and returns what `of` says. It may also be an object with
            `update(outputs, targets)`, `compute()` and `reset()`, such as those of torchmetrics.
        higher_is_better: Which round is the best.
        unit: What is written after the number; in `"%"` the number is a share, which is recorded and shown times 100.
        of: `"all"`: the function is given the outputs of the whole test set at once, and returns one number, or a
            vector to be averaged. `"each"`: it is given a batch at a time, and returns a vector with a score for each
            example; these are averaged over the test set, and outputs are not kept.
        then: What is applied to the mean: `math.exp` makes a perplexity of a cross-entropy.

    >>> error = Metric(rmse, higher_is_better=False)
    >>> error.value(torch.tensor([1.0, 5.0]), torch.tensor([1.0, 3.0]))
    1.4142135623730951
    """

    function: Any
    higher_is_better: bool = True
    unit: str = ""
    of: Literal["all", "each"] = "all"
    then: Callable[[float], float] | None = None

    def __post_init__(self) -> None:
        if self.of not in ("all", "each"):
            raise UsageError(f"a metric is of 'all' predictions or of 'each' example, not of {self.of!r}")
        if _counts(self.function) and self.of == "each":
            raise UsageError("a metric with update and compute is of 'all' predictions: leave out of='each'")
        if not (_counts(self.function) or callable(self.function)):
            raise UsageError(
                f"a metric is a function of outputs and targets, or an object with update, compute and reset, "
                f"not {type(self.function).__name__}"
            )

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The scores of a batch, of a metric of `"each"`."""
        return _vector(self.function(outputs, targets))

    def value(self, outputs: Tensor, targets: Tensor) -> float:
        """The metric of all these predictions."""
        if not _counts(self.function):
            return self.mean(_vector(self.function(outputs, targets), or_number=True))
        counter = copy.deepcopy(self.function)  # what the user gave has no state, before and after
        counter.reset()
        counter.update(outputs, targets)
        return self.mean(_vector(counter.compute(), or_number=True))

    def mean(self, scores: Tensor) -> float:
        """The metric as it is recorded: the mean of these scores, in the metric's unit."""
        mean = float((scores if scores.is_floating_point() else scores.double()).mean())
        mean = mean if self.then is None else self.then(mean)
        return 100 * mean if self.unit == "%" else mean


def as_metric(given: Any) -> Metric:
    """A metric from a bare function, too: scores of each example, the higher the better, in percent."""
    return given if isinstance(given, Metric) else Metric(given, unit="%", of="all" if _counts(given) else "each")


def named(given: Any) -> dict[str, Metric]:
    """Metrics by name, the first being the one that decides; a single one has the name of its function."""
    if isinstance(given, Mapping):
        return {name: as_metric(metric) for name, metric in given.items()}
    metric = as_metric(given)
    function = getattr(metric.function, "func", metric.function)  # of a functools.partial
    return {getattr(function, "__name__", type(function).__name__): metric}


def told(value: float, unit: str = "%") -> str:
    """The value of a metric for people to read, with its unit.

    >>> told(81.25), told(0.0123456, ""), told(2.5, "mm")
    ('81.25 %', '0.01235', '2.5 mm')
    """
    return f"{value:.2f} %" if unit == "%" else f"{value:.4g} {unit}".rstrip()


def _counts(given: Any) -> bool:
    """Whether it is an object that counts predictions, as those of torchmetrics do."""
    return all(callable(getattr(given, name, None)) for name in ("update", "compute", "reset"))


def _vector(given: Any, *, or_number: bool = False) -> Tensor:
    """What a metric has returned, as a vector."""
    if or_number and isinstance(given, int | float):
        given = torch.tensor(given, dtype=torch.float64)
    if or_number and isinstance(given, Tensor) and given.numel() == 1:
        given = given.reshape(1)
    if isinstance(given, Tensor) and given.dim() == 1:
        return given.detach().cpu()
    shape = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
    wanted = "a number or a vector" if or_number else "a vector, the score of each example of a batch"
    raise UsageError(f"the metric gives {shape}: a metric returns {wanted}")


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


def rmse(outputs: Tensor, targets: Tensor) -> Tensor:
    """The root of the mean squared error, of all predictions.

    Args:
        outputs: The predictions.
        targets: The numbers to predict, in the shape of the outputs or without a last dimension of 1.
    """
    return _errors(outputs, targets).square().mean().sqrt()


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean absolute error, of all predictions.

    Args:
        outputs: The predictions.
        targets: The numbers to predict, in the shape of the outputs or without a last dimension of 1.
    """
    return _errors(outputs, targets).abs().mean()


def f1(outputs: Tensor, targets: Tensor) -> Tensor:
    """The F1 score 2 TP / (2 TP + FP + FN) of all predictions, averaged over classes (macro).

    A class that is neither predicted nor true is left out.

    Args:
        outputs: Scores `[batch, classes, …]`, or `[batch, labels]`.
        targets: Class numbers `[batch, …]`; or, in the shape of the outputs, labels 0 and 1 of which an example may
            have several, each predicted where its output is positive.

    >>> f1(torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]]), torch.tensor([0, 1, 1]))
    tensor(0.6667, dtype=torch.float64)
    """
    predicted, truth = _decisions(outputs, targets)
    hits, total = (predicted & truth).sum(0).double(), predicted.sum(0) + truth.sum(0)
    return (2 * hits[total > 0] / total[total > 0]).mean()


def auc(outputs: Tensor, targets: Tensor) -> Tensor:
    """The area under the ROC curve, of all predictions, averaged over classes or labels (macro).

    It is the chance that an example with the label has a higher output than one without; ties count half. A label that
    every example has, or none, has no such area and is left out.

    Args:
        outputs: Scores `[batch, classes, …]`, which are compared class by class, one against the rest, as
            log-probabilities; or `[batch, labels]`.
        targets: Class numbers `[batch, …]`; or, in the shape of the outputs, labels 0 and 1.

    >>> auc(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0.0, 0.0, 1.0, 1.0]))
    tensor(0.7500, dtype=torch.float64)
    """
    _, truth = _decisions(outputs, targets)
    if outputs.numel() == targets.numel():
        scores = outputs.double().reshape(len(outputs), -1)
    else:
        scores = outputs.double().log_softmax(1).movedim(1, -1).reshape(-1, outputs.shape[1])
    areas = [_area(scores[:, label], truth[:, label]) for label in range(truth.shape[1])]
    found = [area for area in areas if area is not None]
    if not found:
        raise UsageError("AUC needs examples with and without a label, and the test set has no label of which both are")
    return torch.stack(found).mean()


def token_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy, in nats, of every position that counts.

    Args:
        outputs: Scores `[batch, time, vocabulary]`.
        targets: Token numbers `[batch, time]`; -100 where a position does not count.
    """
    kept = targets != -100
    return functional.cross_entropy(outputs[kept].double(), targets[kept], reduction="none")


def perplexity() -> Metric:
    """The exponential of the mean cross-entropy of tokens: lower is better."""
    return Metric(token_entropy, higher_is_better=False, of="each", then=math.exp)


def _errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """The differences; shapes that torch would silently spread out over each other are refused."""
    if outputs.dim() == targets.dim() + 1 and outputs.shape[-1] == 1:
        outputs = outputs.squeeze(-1)
    if outputs.shape != targets.shape:
        raise UsageError(
            f"outputs {list(outputs.shape)} and targets {list(targets.shape)} cannot be subtracted one by one: "
            "give targets of the outputs' shape"
        )
    return outputs.double() - targets.double()


def _decisions(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """What is predicted and what is true, as `[examples, labels]` of booleans."""
    if outputs.dim() == targets.dim() + 1 and outputs.shape[-1] == 1:
        targets = targets.unsqueeze(-1)
    if outputs.shape == targets.shape:
        return (outputs > 0).reshape(len(outputs), -1), (targets > 0.5).reshape(len(targets), -1)
    classes = outputs.shape[1]
    labels = torch.arange(classes)
    return outputs.argmax(1).reshape(-1, 1) == labels, targets.reshape(-1, 1) == labels


def _area(scores: Tensor, truth: Tensor) -> Tensor | None:
    """The area of one label from the ranks of its scores, equal ones sharing their mean rank (Mann and Whitney)."""
    positive = int(truth.sum())
    negative = len(truth) - positive
    if not positive or not negative:
        return None
    _, place, times = torch.unique(scores, return_inverse=True, return_counts=True)
    ranks = times.cumsum(0).double() - (times - 1) / 2
    above: Tensor = ranks[place][truth].sum()
    return (above - positive * (positive + 1) / 2) / (positive * negative)
