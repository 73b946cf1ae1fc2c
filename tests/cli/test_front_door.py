"""What users may get wrong with datasets, optimizers and metrics of their own: one sentence, the documented code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from progfed.cli import main

PROGRAM = """
import functools
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset
import progfed


class Points(Dataset):
    def __init__(self, number=12):
        self.number = number

    def __len__(self):
        return self.number

    def __getitem__(self, place):
        return torch.full((4,), float(place)), place % 3


class NoLength:
    def __getitem__(self, place):
        return torch.zeros(4), 0


class Stream(IterableDataset):
    def __iter__(self):
        yield torch.zeros(4), 0


class Lengths(Points):
    def __getitem__(self, place):
        return torch.zeros(4 + place % 2), 0


class Words(Points):
    def __getitem__(self, place):
        return torch.zeros(4), "cat"


class Dicts(Points):
    def __getitem__(self, place):
        return {"pixels": torch.zeros(4), "answer": 1}


class Labels(Points):
    def __getitem__(self, place):
        return torch.zeros(4), 7


class Files(Points):
    def __getitem__(self, place):
        return torch.load(f"missing-{place}.pt"), 0


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))
train, test, collate, local, metrics, extra = [Points(), Points()], Points(), None, {}, {}, {}
CHANGE
if "model" not in globals():
    model = progfed.split(net, stages=2, example=torch.zeros(2, 4))
EXPERIMENT = progfed.Experiment(
    name="mine",
    model=model,
    data=progfed.from_datasets(train, test=test, collate=collate, classes=3),
    recipe=progfed.Recipe(schedule=progfed.progressive(2, stages=2), cohort=2, local=progfed.Local(**local), **extra),
    metrics=metrics,
)
"""

MISTAKES = {
    "no length": ("train = [NoLength()]", 3, "client 0: NoLength has no length: give it __len__"),
    "a stream": ("train = [Stream()]", 3, "client 0: Stream has no items by number: give a map-style dataset"),
    "no clients": ("train = []", 3, "there are no clients"),
    "no items": ("train = [Points(), Points(0)]", 3, "client 1 has no examples"),
    "one dataset": ("train = Points()", 3, "is shared out by progfed.partitioned"),
    "no test items": ("test = Points(0)", 3, "the test set has no examples"),
    "lengths": ("train = [Points(), Lengths()]", 3, "client 1: items of different shapes"),
    "lengths of the test": ("test = Lengths()", 3, "the test set: items of different shapes"),
    "words": ("train = [Words(), Words()]", 3, "targets are numbers or tensors, not str"),
    "no targets": ("train = [Dicts(), Dicts()]", 3, "has pixels, answer, and no targets: name them labels or label"),
    "labels": ("train = [Labels(), Labels()]", 3, "has label 7, outside the 3 classes"),
    "files": ("train = [Files(), Files()]", 3, "client 0 cannot be read: FileNotFoundError"),
    "collate": ("collate = lambda items: len(items)", 3, "what collate returns is a int"),
    "optimizer": ("local = {'optimizer': nn.Linear}", 2, "optimizer takes a class of torch.optim"),
    "optimizer's name": ("local = {'optimizer': 'adam'}", 2, "optimizer takes a class of torch.optim"),
    "optimizer made": ("local = {'optimizer': torch.optim.Adam(net.parameters())}", 2, "give the class Adam"),
    "rate": ("local = {'optimizer': functools.partial(torch.optim.Adam, lr=1)}", 2, "leave lr=1 out of Adam"),
    "setting": ("local = {'optimizer': functools.partial(torch.optim.Adam, beta=1)}", 2, "unexpected keyword"),
    "loss": ("local = {'loss': nn.CrossEntropyLoss(reduction='none')}", 2, "the loss gives a tensor of shape"),
    "nan": (
        "metrics = {'mine': progfed.Metric(lambda o, t: float('nan'))}",
        2,
        "the metric mine is nan on the test set",
    ),
    "text": ("metrics = {'mine': progfed.Metric(lambda o, t: 'good')}", 2, "a metric returns a number or a vector"),
    "no metric": ("metrics = {'mine': 3}", 2, "a metric is a function of outputs and targets"),
    "failing metric": ("metrics = {'mine': lambda o, t: o @ t.float()}", 3, "which the loss or metric cannot compare"),
    "not split": ("model = lambda: net", 2, "cannot grow: give progfed.split"),
    "another input": ("test = [(torch.zeros(5), 0)]", 3, "the test set has inputs float32 [n, 5]"),
    "a rate": ("extra = {'rate': 'fast'}", 2, "a rate is a number"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_with_its_exit_code(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    change, code, sentence = MISTAKES[name]
    (tmp_path / "mine.py").write_text(PROGRAM.replace("CHANGE", change))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["progfed", "run", "mine.py", "--workers", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("mine/run round")]
    assert len(said) == 1
    assert said[0].startswith("progfed: ")
    assert sentence in said[0]
    assert ended.value.code == code


def test_the_program_without_a_mistake_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.py").write_text(PROGRAM.replace("CHANGE", ""))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["progfed", "run", "mine.py", "--workers", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code
    assert "run:" in capsys.readouterr().out
