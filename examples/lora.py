"""Fine-tuning with LoRA: a frozen BERT with adapters of PEFT, of which only adapters and heads are trained and sent."""

import copy
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import BertConfig, BertForSequenceClassification

import progfed


def questions(number: int, seed: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Stands for sentences that were made numbers: which of four words comes first, before words that do not matter."""
    ids = torch.randint(4, 30, (number, 10), generator=torch.Generator().manual_seed(seed))
    ids[:, 0] %= 4
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, ids[:, 0]


def main(folder: Path, rounds: int = 9) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)  # stands for from_pretrained("…"): everybody has this model already
    base = BertForSequenceClassification(BertConfig(vocab_size=30, num_labels=4, **sizes))
    config = LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=16, target_modules=["query", "value"])
    net = get_peft_model(copy.deepcopy(base), config)
    test = questions(200, seed=0)
    model = progfed.split(net, stages=3, example=test[0])
    data = progfed.from_clients([questions(60, seed=client) for client in range(1, 9)], test=test, classes=4)
    local = progfed.Local(epochs=2, batch=10, optimizer=torch.optim.AdamW)
    recipe = progfed.Recipe(schedule=progfed.progressive(rounds, stages=3), cohort=4, local=local, rate=1e-2)
    experiment = progfed.Experiment(name="lora", model=model, data=data, recipe=recipe)
    summary = progfed.run(experiment, folder / "run")
    progfed.export(folder / "run", folder / "adapters", model=net)
    again = PeftModel.from_pretrained(base, str(folder / "adapters")).eval()
    right = again(**test[0]).logits.argmax(1) == test[1]
    print(f"reported:         {summary['metric']:.1f} %, {summary['cost']['up_bytes'] / 1e6:.2f} MB sent by clients")
    print(f"whole models:     {4 * rounds * 4 * sum(p.numel() for p in net.parameters()) / 1e6:.2f} MB")
    print(f"in plain PyTorch: {100 * right.float().mean():.1f} %")


if __name__ == "__main__":
    Path("lora").mkdir(exist_ok=True)
    main(Path("lora"))
