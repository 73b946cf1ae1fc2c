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

from progfed import rng
from progfed.codec import codec, numel, schema_of
from progfed.tensors import Tensors

NAMES = (
    *("float", "fp16", "bf16", "LQ-8", "LQ-4", "LQ-2", "LQ-1", "LQ-4@1024"),
    *("SP-25", "SP-10", "RAND-25", "LQ-8+SP-25", "LQ-8+SP-10", "SP-25+LQ-8"),
    *("TOP-10", "TOP-1", "TOP-10+LQ-8", "LQ-8+TOP-10"),
    *("ROT", "ROT+LQ-8", "ROT+LQ-4", "ROT+LQ-2", "ROT+LQ-8+SP-25"),
    *("DQ-1", "DQ-1.5", "DQ-3", "EDEN-1"),
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


if __name__ == "__main__":
    main()
