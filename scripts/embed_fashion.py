"""Makes the embedded subset of Fashion-MNIST from the original idx files: the first images of each class.

Usage: python scripts/embed_fashion.py SOURCE_FOLDER   (Debian's package `dataset-fashion-mnist` has the files)
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import numpy as np

TARGET = Path(__file__).parents[1] / "src/progfed/data/files/fashion-mnist"
PER_CLASS = {"train": 600, "t10k": 100}


def read(path: Path, header: int) -> tuple[bytes, np.ndarray]:
    raw = gzip.decompress(path.read_bytes())
    return raw[:header], np.frombuffer(raw, np.uint8, offset=header)


def write(path: Path, header: bytes, values: np.ndarray) -> None:
    count = len(values).to_bytes(4, "big")
    path.write_bytes(gzip.compress(header[:4] + count + header[8:] + values.tobytes(), 9, mtime=0))


def main(source: Path) -> None:
    TARGET.mkdir(parents=True, exist_ok=True)
    for part, per_class in PER_CLASS.items():
        images_name, labels_name = f"{part}-images-idx3-ubyte.gz", f"{part}-labels-idx1-ubyte.gz"
        label_header, labels = read(source / labels_name, 8)
        image_header, pixels = read(source / images_name, 16)
        chosen = np.sort(np.concatenate([np.flatnonzero(labels == c)[:per_class] for c in range(10)]))
        write(TARGET / labels_name, label_header, labels[chosen])
        write(TARGET / images_name, image_header, pixels.reshape(-1, 28, 28)[chosen])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
