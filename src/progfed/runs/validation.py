"""An experiment as it is tried out: on validation data, so that its settings are chosen without the test set."""

from __future__ import annotations

from dataclasses import replace

from progfed.data.validation import HeldOut, held_out
from progfed.population import FederatedData
from progfed.runs.experiment import Experiment


def validated(experiment: Experiment, share: float = 0.1) -> Experiment:
    """The same experiment on training data of which a share is held out, and evaluated on that share.

    It is another experiment, `NAME-validation`, so that its figures never stand among those of the test set. The split
    is the same for every seed.
    """
    data = experiment.data
    split = held_out(data, share) if isinstance(data, FederatedData) else HeldOut(data=data, share=share)
    examples = round(experiment.examples * (1 - share))
    return replace(experiment, name=f"{experiment.name}-validation", data=split, examples=examples)
