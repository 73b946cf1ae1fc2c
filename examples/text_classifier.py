"""A text classifier of the transformers package: attention masks, padding by the batch, AdamW."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from transformers import BertConfig, BertForSequenceClassification

import progfed


def sentence(number: int) -> dict[str, Any]:
    """Stands for a sentence that was made numbers: 4 to 12 words, about the one of two topics that its words are of."""
    draw, topic = torch.Generator().manual_seed(number), number % 2
    words = torch.randint(2, 22, (4 + number % 9,), generator=draw) + topic * 8
    return {"input_ids": words, "labels": topic}


def padded(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids = pad_sequence([item["input_ids"] for item in items], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([i["labels"] for i in items])}


def main(folder: Path, rounds: int = 8) -> None:
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    net = BertForSequenceClassification(BertConfig(vocab_size=30, max_position_embeddings=16, **sizes))
    test = [sentence(number) for number in range(60)]
    example = {key: value for key, value in padded(test[:2]).items() if key != "labels"}
    model = progfed.split(net, stages=2, example=example)
    clients = [[sentence(100 * client + number) for number in range(40)] for client in range(1, 7)]
    data = progfed.from_datasets(clients, test=test, collate=padded, classes=2)
    local = progfed.Local(epochs=2, batch=8, optimizer=torch.optim.AdamW, clip=1.0)
    recipe = progfed.Recipe(schedule=progfed.progressive(rounds, stages=2), cohort=3, local=local, rate=5e-3)
    experiment = progfed.Experiment(name="sentences", model=model, data=data, recipe=recipe)
    print(f"reported:         {progfed.run(experiment, folder / 'run')['metric']:.1f} %")
    net.load_state_dict(load_file(folder / "run" / "exported.safetensors"))
    batch = padded(test)
    right = net.eval()(**batch).logits.argmax(1) == batch["labels"]
    print(f"in plain PyTorch: {100 * right.float().mean():.1f} %")


if __name__ == "__main__":
    main(Path("sentences"))
