"""The best round of the final model: its model is kept beside the last, and training may end when none better comes."""

from __future__ import annotations

from collections.abc import Iterable

from progfed import files
from progfed.runs import checkpoint
from progfed.runs.directory import Record, RunDirectory
from progfed.runs.experiment import Experiment
from progfed.tensors import Tensors

BEST = "best.safetensors"


class Best:
    """Follows a run's records; what was recorded before tells where it stands, so that a run may be continued.

    Its model is written with the next checkpoint: a crash before that forgets the round, which is then trained again.
    """

    def __init__(self, directory: RunDirectory, experiment: Experiment) -> None:
        self._directory, self._experiment = directory, experiment
        records = directory.records()
        self._record, self._last = best_record(records, experiment), records[-1] if records else None
        self._unsaved: Tensors | None = None

    def see(self, record: Record, params: Tensors) -> None:
        """Take note of a round: its record, and the parameters of the model after it."""
        known, self._last = [self._record] if self._record else [], record
        if best_record([*known, record], self._experiment) is record:
            self._record, self._unsaved = record, params

    def save(self) -> None:
        """Write the best model, if it is not written yet."""
        if self._unsaved is not None:
            files.replace_file(self._directory.path / BEST, checkpoint.to_bytes(self._unsaved))
            self._unsaved = None

    @property
    def given_up(self) -> bool:
        """Whether the experiment's patience ended with the last round, which was evaluated then."""
        patience, best, last = self._experiment.patience, self._record, self._last
        if patience is None or best is None or last is None or last["metric"] is None:
            return False
        return bool(last["round"] - best["round"] >= patience)


def best_record(records: Iterable[Record], experiment: Experiment) -> Record | None:
    """The record of the best round by the first metric, the earliest of equal ones; None before there is any.

    Earlier stages are other, smaller models with temporary heads: their metric is not one of the final model.

    Args:
        records: The records of a run, or some of them.
        experiment: Says which stage is the last, and whether a higher metric is better.
    """
    final = experiment.recipe.schedule[-1].stage
    whole = [record for record in records if record["stage"] == final and record["metric"] is not None]
    first = next(iter(experiment.judged.values()))
    sign = 1 if first.higher_is_better else -1
    return max(whole, key=lambda record: sign * record["metric"], default=None)
