"""Datasets of the `datasets` library as clients: shared out, as tensors, padded, from disk, in several processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import tokenizers
import torch
import transformers
from torch import nn

from progfed import Experiment, Recipe, from_clients, from_datasets, partitioned, progressive, run, split
from progfed.errors import DataError
from progfed.report.labels import label_counts


@pytest.fixture(autouse=True)
def no_bars() -> None:
    datasets.disable_progress_bars()


def points(number: int = 24) -> datasets.Dataset:
    values = torch.randn(number, 4, generator=torch.Generator().manual_seed(0))
    return datasets.Dataset.from_dict({"x": values.tolist(), "label": [i % 3 for i in range(number)]})


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A real one, of a vocabulary that needs no network."""
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "red", "green", "apples", "pears"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]")


def sentences() -> datasets.Dataset:
    """Sentences of 2 to 6 words, as numbers."""
    told = ["red apples " * (1 + i % 3) if i % 2 else "green pears " * (1 + i % 3) for i in range(12)]
    table = datasets.Dataset.from_dict({"text": told, "label": [i % 2 for i in range(12)]})
    return table.map(lambda row: tokenizer()(row["text"]), remove_columns="text")


class Net(nn.Module):
    """Takes the column `x` by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)
        return found


def experiment(data: Any) -> Experiment:
    torch.manual_seed(0)
    model = split(Net(), stages=2, example={"x": torch.zeros(2, 4)})
    return Experiment(name="hub", model=model, data=data, recipe=Recipe(schedule=progressive(4, stages=2), cohort=2))


@pytest.mark.parametrize("form", [None, "torch", "numpy"])
def test_items_are_tensors_and_labels_are_shared_out_by_their_column(form: str | None) -> None:
    table = points() if form is None else points().with_format(form)
    parts = partitioned(table, clients=3, how="shards:1")
    data = from_datasets(parts, test=table, classes=3)
    assert label_counts(data, range(3)).max(1).tolist() == [8, 8, 8]
    batch = data.test_examples().take(slice(0, 2))
    assert batch.inputs["x"].shape == (2, 4)
    assert batch.inputs["x"].dtype == torch.float32
    assert batch.targets.tolist() == [0, 1]


def test_a_table_on_disk_trains_to_the_bits_of_the_same_tensors(tmp_path: Path) -> None:
    points().save_to_disk(tmp_path / "table")
    table = datasets.load_from_disk(tmp_path / "table")
    parts = partitioned(table, clients=4, how="dirichlet:0.5")
    columns = table.with_format("torch")[:]
    pairs = [({"x": columns["x"][part.indices]}, columns["label"][part.indices]) for part in parts]
    held = from_clients(pairs, test=({"x": columns["x"]}, columns["label"]), classes=3)
    tensors = run(experiment(held), tmp_path / "tensors", workers=1)
    lazy = run(experiment(from_datasets(parts, test=table, classes=3)), tmp_path / "lazy", workers=2)
    assert lazy["model_sha256"] == tensors["model_sha256"]


def test_sentences_are_padded_by_the_batch_with_the_collator_of_transformers() -> None:
    collate = transformers.DataCollatorWithPadding(tokenizer())
    data = from_datasets(partitioned(sentences(), clients=2), test=sentences(), collate=collate, classes=2)
    whole, first = data.test_examples().take(slice(None)), data.test_examples().take(slice(0, 1))
    assert first.inputs["input_ids"].shape == (1, 2)
    assert whole.inputs["input_ids"].shape == whole.inputs["attention_mask"].shape == (12, 6)
    assert whole.inputs["attention_mask"].sum(1).tolist() == [2, 4, 6] * 4
    assert whole.targets.tolist() == [0, 1] * 6
    with pytest.raises(DataError, match=r"items of different shapes .* give collate"):
        from_datasets([sentences()], test=sentences()).client(0).take(slice(0, 4))


def test_text_columns_and_several_splits_are_refused_in_a_sentence() -> None:
    told = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]})
    with pytest.raises(DataError, match="inputs are tensors"):
        from_datasets([told], test=told).client(0).take(slice(0, 2))
    both = datasets.DatasetDict({"train": points(), "test": points()})
    with pytest.raises(DataError, match="give one of train, test"):
        from_datasets([both], test=points())
    with pytest.raises(DataError, match="no items by number"):
        from_datasets([points().to_iterable_dataset()], test=points())
    with pytest.raises(DataError, match="a list with a dataset for each client"):
        from_datasets(points(), test=points())
