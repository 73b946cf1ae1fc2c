"""`progfed export` to what other tools read: ONNX, and folders of transformers and PEFT."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnx
import onnx.reference
import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file
from torch import nn
from typer.testing import CliRunner

import progfed
from progfed import Experiment, Local, Recipe, from_clients, progressive, rng, split
from progfed.cli import app
from progfed.errors import ProgfedError, StorageError, UsageError
from progfed.losses import token_loss
from progfed.metrics import token_accuracy
from progfed.runs.exported import state_dict

FILE = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    return nn.Sequential(first, nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))

images = torch.ones(3, 1, 8, 8)
number = 3
"""


def names() -> dict[str, Any]:
    """What the user's file has."""
    found: dict[str, Any] = {}
    exec(FILE, found)
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, and beside it the file with its model."""
    folder = tmp_path_factory.mktemp("export")
    (folder / "mine.py").write_text(FILE)
    draw = torch.Generator().manual_seed(0)
    pairs = [(torch.randn(12, 1, 8, 8, generator=draw), torch.arange(12) % 3) for _ in range(3)]
    experiment = Experiment(
        name="own",
        model=split(names()["net"](), stages=2, example=pairs[0][0]),
        data=from_clients(pairs[:2], test=pairs[2], classes=3),
        recipe=Recipe(schedule=progressive(4, stages=2), cohort=2, local=Local(batch=4)),
    )
    progfed.run(experiment, folder / "run")
    return folder


def invoke(folder: Path, to: Path, *more: str) -> Any:
    return CliRunner().invoke(app, ["export", str(folder / "run"), "--to", str(to), *more])


def outputs(path: Path, **inputs: torch.Tensor) -> torch.Tensor:
    """What an ONNX file computes, by the reference of ONNX itself."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    given = {one.name: value.numpy() for one, value in zip(model.graph.input, inputs.values(), strict=True)}
    return torch.from_numpy(onnx.reference.ReferenceEvaluator(model).run(None, given)[0])


def test_onnx_computes_what_torch_does_for_any_size_of_a_batch(finished: Path, tmp_path: Path) -> None:
    done = invoke(finished, tmp_path / "net.onnx", "--model", f"{finished / 'mine.py'}:net", "--input", "1x8x8")
    assert done.exit_code == 0, done.output
    net = names()["net"]().eval()
    net.load_state_dict(state_dict(finished / "run"))
    for number in (1, 5):
        images = torch.randn(number, 1, 8, 8)
        assert torch.allclose(outputs(tmp_path / "net.onnx", images=images), net(images), atol=1e-5)


def test_onnx_takes_inputs_by_name_and_leaves_the_mode_of_the_model(finished: Path, tmp_path: Path) -> None:
    """A model of two inputs, in training: its dropout must not be in the file."""

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.drop = names()["net"](), nn.Dropout()

        def forward(self, image: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.net(self.drop(image)) * gate[:, None]
            return found

        def load_state_dict(self, tensors: Any, strict: bool = True, assign: bool = False) -> Any:
            return self.net.load_state_dict(tensors, strict, assign)

    model, inputs = Gated(), {"image": torch.randn(3, 1, 8, 8), "gate": torch.rand(3)}
    progfed.export(finished / "run", tmp_path / "net.onnx", model=model, example=inputs)
    assert model.training
    assert torch.allclose(outputs(tmp_path / "net.onnx", **inputs), model.eval()(**inputs), atol=1e-5)


@pytest.mark.parametrize(
    ("to", "more", "kind", "sentence"),
    [
        ("a.onnx", [], UsageError, "give your own module"),
        ("a.onnx", ["--model", "mine.py:net"], UsageError, "needs an example"),
        ("a.onnx", ["--model", "mine.py:number"], UsageError, "is of type int"),
        ("a.onnx", ["--model", "mine.py:nett"], UsageError, "did you mean net"),
        ("a.onnx", ["--model", "net"], UsageError, "give FILE:NAME"),
        ("a.onnx", ["--model", "mine.py:net", "--input", "2x8x8"], UsageError, "torch cannot write Sequential as ONNX"),
        ("folder", [], UsageError, "give your own module"),
        ("folder", ["--model", "mine.py:net"], UsageError, "Sequential has no save_pretrained"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence_and_leaves_nothing(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str, more: list[str], kind: type, sentence: str
) -> None:
    monkeypatch.chdir(finished)
    done = invoke(finished, tmp_path / to, *more)
    assert isinstance(done.exception, kind)
    assert isinstance(done.exception, ProgfedError)
    assert sentence in str(done.exception)
    assert not any(tmp_path.iterdir())


def test_onnx_without_its_packages_names_the_extra(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UsageError, match=r"progfed\[onnx\]"):
        progfed.export(finished / "run", tmp_path / "a.onnx", model=names()["net"](), example=torch.ones(2, 1, 8, 8))


def test_a_module_that_was_not_split_is_refused(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="do not fit Linear"):
        progfed.export(finished / "run", tmp_path / "folder", model=nn.Linear(3, 3))


def trained(model: nn.Module, pair: Any, folder: Path, **local: Any) -> None:
    recipe = Recipe(schedule=progressive(2, stages=2), cohort=1, local=Local(**local))
    experiment = Experiment(
        name="pretrained",
        model=split(model, stages=2, example=pair[0]),
        data=from_clients([pair], test=pair),
        recipe=recipe,
        metric=token_accuracy if local else progfed.metrics.accuracy,
    )
    progfed.run(experiment, folder)


def test_a_model_of_transformers_becomes_a_folder_that_loads_again(tmp_path: Path) -> None:
    """Its embedding is its last layer, too: one tensor under two names."""
    config = transformers.GPT2Config(vocab_size=30, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    mine = transformers.GPT2LMHeadModel(config)
    ids = torch.arange(56).view(8, 7) % 30
    pair = {"input_ids": ids[:, :-1]}, ids[:, 1:]
    trained(mine, pair, tmp_path / "run", loss=token_loss)
    progfed.export(tmp_path / "run", tmp_path / "folder", model=mine)
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "folder").eval()
    mine.load_state_dict(load_file(tmp_path / "run" / "exported.safetensors"), strict=True)
    assert torch.equal(again(**pair[0]).logits, mine.eval()(**pair[0]).logits)
    with pytest.raises(StorageError, match="there already and not empty"):
        progfed.export(tmp_path / "run", tmp_path / "folder", model=mine)


def test_of_adapters_the_folder_holds_only_adapters_and_fits_the_frozen_model(tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}

    def base() -> nn.Module:
        with rng.default(0, "base"):
            config = transformers.BertConfig(vocab_size=30, max_position_embeddings=16, num_labels=3, **sizes)
            return transformers.BertForSequenceClassification(config)

    lora = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    mine = peft.get_peft_model(base(), lora)
    ids = torch.arange(60).view(12, 5) % 30
    pair = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, ids[:, 0] % 3
    trained(mine, pair, tmp_path / "run")
    progfed.export(tmp_path / "run", tmp_path / "adapters", model=mine)
    kept = load_file(tmp_path / "adapters" / "adapter_model.safetensors")
    assert all("lora" in name or "classifier" in name for name in kept)
    again = peft.PeftModel.from_pretrained(base(), tmp_path / "adapters").eval()
    assert torch.equal(again(**pair[0]).logits, mine.eval()(**pair[0]).logits)
