"""Speed of every codec on the tensors of a ResNet-18, as a ratio to copying the same numbers in memory.

One thread, in seconds of processor time, so that other programs on the machine disturb less. Encode, decode and
copy take turns, so that a change in the machine's speed hits all of them; the ratios are taken inside each turn,
and their median is printed.

    python benchmarks/codec_costs.py [--turns 9] [--json] [NAME ...]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from progfed import Local, Progressive, Recipe, end_to_end, from_clients, rng
from progfed.blocks import hold, state
from progfed.client.learner import Learner
from progfed.codec import codec, numel, schema_of
from progfed.models.convnet import convnet_cifar
from progfed.schedule import Phase
from progfed.server.broadcast import broadcast
from progfed.tensors import Tensors
from progfed.wire.engine import Task
from progfed.wire.message import DOWN, Envelope

NAMES = (
    *("float", "fp16", "bf16", "LQ-8", "LQ-4", "LQ-2", "LQ-1", "LQ-4@1024"),
    *("SP-25", "SP-10", "RAND-25", "LQ-8+SP-25", "LQ-8+SP-10", "SP-25+LQ-8"),
    *("TOP-10", "TOP-1", "TOP-10+LQ-8", "LQ-8+TOP-10"),
    *("ROT", "ROT+LQ-8", "ROT+LQ-4", "ROT+LQ-2", "ROT+LQ-8+SP-25"),
    *("DQ-1", "DQ-1.5", "DQ-3", "DQ-0.7bit", "DQ-1.3bit", "EDEN-1"),
)


def allowed(name: str) -> tuple[int, int]:
    """The ratios that encoding and decoding should stay below."""
    if name.startswith("DQ"):
        return 30, 20
    return (40, 40) if "TOP" in name or "ROT" in name or "EDEN" in name else (20, 20)


def resnet18() -> Tensors:
    """The tensors of a ResNet-18 with GroupNorm for 100 classes, filled with numbers like an update's."""
    shapes: list[tuple[int, ...]] = [(64, 3, 3, 3), (64,), (64,)]
    before = 64
    for width in (64, 128, 256, 512):
        for block in range(2):
            inputs = before if block == 0 else width
            shapes += [(width, inputs, 3, 3), (width,), (width,), (width, width, 3, 3), (width,), (width,)]
            if inputs != width:
                shapes += [(width, inputs, 1, 1), (width,), (width,)]
        before = width
    shapes += [(100, 512), (100,)]
    draw = rng.generator(0, "benchmark")
    return {f"t{place:02}": torch.randn(shape, generator=draw) * 1e-3 for place, shape in enumerate(shapes)}


def small() -> Tensors:
    """Ten tiny tensors: what a small client model costs in overhead."""
    draw = rng.generator(1, "benchmark")
    return {f"t{place}": torch.randn(20 + place, generator=draw) for place in range(10)}


def seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def measure(name: str, tensors: Tensors, turns: int) -> dict[str, Any]:
    chosen, schema = codec(name), schema_of(tensors)
    assert chosen.name == name, f"asked for {name}, got {chosen.name}"
    source = torch.cat([value.reshape(-1) for value in tensors.values()])
    target = source.clone()
    data = chosen.encode(tensors, 0)
    assert len(data) <= chosen.size(schema)
    view, copy, encode, decode = memoryview(data), [], [], []
    for turn in range(turns + 1):
        copy.append(seconds(lambda: target.copy_(source)))
        encode.append(seconds(lambda turn=turn: chosen.encode(tensors, turn)))
        decode.append(seconds(lambda: chosen.decode(view, schema)))
    pairs = [(e / c, d / c) for c, e, d in zip(copy[1:], encode[1:], decode[1:], strict=True)]
    tiny = small()
    few = schema_of(tiny)
    packed = memoryview(chosen.encode(tiny, 0))
    return {
        "codec": name,
        "percent": 100 * len(data) / (4 * numel(schema)),
        "copy_ms": 1e3 * statistics.median(copy[1:]),
        "encode_ms": 1e3 * statistics.median(encode[1:]),
        "decode_ms": 1e3 * statistics.median(decode[1:]),
        "encode_ratio": statistics.median(pair[0] for pair in pairs),
        "decode_ratio": statistics.median(pair[1] for pair in pairs),
        "allowed_ratios": allowed(name),
        "small_encode_us": 1e6 * min(seconds(lambda: chosen.encode(tiny, 0)) for _ in range(50)),
        "small_decode_us": 1e6 * min(seconds(lambda: chosen.decode(packed, few)) for _ in range(50)),
    }


def exchange(turns: int) -> dict[str, float]:
    """What the messages of a client take of its round on CIFAR-10: decoding the model, encoding the update, and on the
    server the client's share of encoding the model, and decoding the update; relative to its training.
    """
    model, down, up = convnet_cifar(heads="grid"), codec("DQ-1.3bit"), codec("DQ-0.6bit")
    draw = rng.generator(2, "benchmark")
    examples = torch.randn(500, 3, 32, 32, generator=draw), torch.randint(10, (500,), generator=draw)
    data = from_clients([examples], test=examples, classes=10)
    recipe = Recipe(schedule=end_to_end(1, stages=4), cohort=1, local=Local(epochs=5, batch=50, momentum=0.9))
    ((_, message),) = broadcast_of(model, recipe).items()
    learner, task = Learner(model, data, recipe, "0" * 16), Task(0, 1, recipe.schedule[0], 0.1, message)
    shapes = {name: value.shape for name, value in state(model.at(4)).items()}
    weights = {  # as what training changes is distributed: Laplace
        name: torch.empty(shape).exponential_(generator=draw) - torch.empty(shape).exponential_(generator=draw)
        for name, shape in shapes.items()
    }
    schema = schema_of(weights)
    first, second = memoryview(down.encode(weights, 0)), memoryview(up.encode(weights, 0))
    training, messages = [], []
    for turn in range(turns + 1):
        training.append(seconds(lambda: learner(task, {})))
        ways = [
            0.1 * seconds(lambda turn=turn: down.encode(weights, turn)),
            seconds(lambda: down.decode(first, schema)),
            seconds(lambda turn=turn: up.encode(weights, turn)),
            seconds(lambda: up.decode(second, schema)),
        ]
        messages.append(sum(ways))
    pairs = zip(messages[1:], training[1:], strict=True)
    return {"training_ms": 1e3 * statistics.median(training[1:]), "share": statistics.median(m / t for m, t in pairs)}


def broadcast_of(model: Progressive, recipe: Recipe) -> dict[Phase, bytes]:
    """The message of the first round of a recipe."""
    (phase,) = recipe.schedule
    params = hold({}, model, phase, seed=recipe.seed)
    schemas = {phase: schema_of(params)}
    return broadcast(params, {}, model, recipe, Envelope(DOWN, "0" * 16, 1, phase.stage), schemas).messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    tensors = resnet18()
    rows = [measure(name, tensors, options.turns) for name in options.names]
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(
        f"{numel(schema_of(tensors)):,} numbers in {len(tensors)} tensors; x = ratio to a copy; us = ten tiny tensors"
    )
    print(f"{'codec':<16}{'% of 4 B':>9}{'encode':>17}{'decode':>17}{'allowed':>10}{'us enc/dec':>14}")
    for row in rows:
        encode = f"{row['encode_ms']:.0f} ms {row['encode_ratio']:5.1f}x"
        decode = f"{row['decode_ms']:.0f} ms {row['decode_ratio']:5.1f}x"
        most = row["allowed_ratios"]
        late = row["encode_ratio"] > most[0] or row["decode_ratio"] > most[1]
        tiny = f"{row['small_encode_us']:.0f}/{row['small_decode_us']:.0f}"
        limit = f"{most[0]}/{most[1]}x{' !' if late else ''}"
        print(f"{row['codec']:<16}{row['percent']:>9.3f}{encode:>17}{decode:>17}{limit:>10}{tiny:>14}")
    found = exchange(options.turns)
    told = f"training {found['training_ms']:.0f} ms, ConvNet, 500 images, 5 epochs; 5 % allowed"
    print(f"small messages take {found['share']:.1%} of a client's round on CIFAR-10 ({told})")


if __name__ == "__main__":
    main()
