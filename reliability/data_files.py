"""Small files in the exact layouts of the real data sets, so that every loader is tested from files to training.

Each writer takes the folder that would be given to the loader as `root`. Layout and types are the real ones, content is
not, so the loaders read them with `verify=False` where the real ones have published hashes or counts.
"""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from progfed import rng
from progfed.data import brats, cifar, idx
from progfed.data.integrity import optional
from progfed.data.synthetic import tumour


def write_cifar(
    root: Path, layout: cifar.Layout = cifar.CIFAR10, *, number: int = 20, seed: int = 0, archive: bool = False
) -> Path:
    """A CIFAR folder or archive with `number` images in each batch, as Python 2 pickled it (protocol 2)."""
    draw = rng.numpy_generator(seed, "write", layout.name)
    contents = {name: pickled(_batch(draw, layout, number)) for name in (*layout.train, *layout.test)}
    names = [f"class {label}".encode() for label in range(layout.classes)]
    contents[next(iter(layout.meta))] = pickled({b"label_names": names})
    if archive:
        return _write_archive(
            root / layout.archive, {f"{layout.folder}/{name}": value for name, value in contents.items()}
        )
    folder = root / layout.folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in contents.items():
        (folder / name).write_bytes(value)
    return folder


def _batch(draw: np.random.Generator, layout: cifar.Layout, number: int) -> dict[bytes, object]:
    labels = draw.integers(0, layout.classes, number)
    images = _patterns(labels, (3, 32, 32), draw).reshape(number, 3072)
    batch: dict[bytes, object] = {layout.labels.encode(): labels.tolist(), b"data": images}
    if layout.groups is not None:
        batch[layout.groups.encode()] = (labels // 5).tolist()
    return batch


def _patterns(labels: np.ndarray, shape: Sequence[int], draw: np.random.Generator) -> np.ndarray:
    """Bytes that depend on the label, so that a model can learn something from the files."""
    level = (labels * 37 % 200).reshape(-1, *[1] * len(shape))
    return (level + draw.integers(0, 56, (len(labels), *shape))).astype(np.uint8)


def pickled(value: object) -> bytes:
    """What Python 2's `pickle.dumps(value, 2)` makes of dicts, lists, ints, byte strings and arrays of bytes."""
    return b"\x80\x02" + _encoded(value) + b"."


def _encoded(value: object) -> bytes:
    if isinstance(value, bytes):
        return b"T" + struct.pack("<I", len(value)) + value
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, list):
        return b"](" + b"".join(_encoded(item) for item in value) + b"e"
    if isinstance(value, dict):
        return b"}(" + b"".join(_encoded(key) + _encoded(item) for key, item in value.items()) + b"u"
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        made = (
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
            + _encoded(0)
            + b"\x85"
            + _encoded(b"b")
            + b"\x87R"
        )
        kind = b"cnumpy\ndtype\n" + _encoded(b"u1") + _encoded(0) + _encoded(1) + b"\x87R"
        order = b"(" + _encoded(3) + _encoded(b"|") + b"NNN" + _encoded(-1) + _encoded(-1) + _encoded(0) + b"tb"
        shape = b"(" + b"".join(_encoded(length) for length in value.shape) + b"t"
        return made + b"(" + _encoded(1) + shape + kind + order + b"\x89" + _encoded(value.tobytes()) + b"tb"
    raise TypeError(f"a CIFAR file has no {type(value).__name__}")


def _write_archive(path: Path, contents: Mapping[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, value in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(value)
            tar.addfile(member, io.BytesIO(value))
    return path


def write_idx(
    root: Path, layout: idx.Layout = idx.FASHION_MNIST, *, number: int = 40, seed: int = 0, compressed: bool = True
) -> Path:
    """The four idx files, with `number` training images and half as many for test."""
    draw = rng.numpy_generator(seed, "write", layout.name)
    folder = root / layout.folder
    folder.mkdir(parents=True, exist_ok=True)
    for which, count in (("train", number), ("t10k", max(number // 2, 1))):
        labels = draw.integers(0, layout.classes, count)
        images = _patterns(labels, (28, 28), draw)
        for name, values in ((f"{which}-images-idx3-ubyte", images), (f"{which}-labels-idx1-ubyte", labels)):
            header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
            content = header + values.astype(np.uint8).tobytes()
            (folder / f"{name}.gz").write_bytes(gzip.compress(content)) if compressed else (folder / name).write_bytes(
                content
            )
    return folder


def write_federated_h5(
    path: Path,
    *,
    clients: int = 5,
    classes: int = 10,
    per_client: tuple[int, int] = (3, 9),
    colour: bool = False,
    seed: int = 0,
) -> Path:
    """One federated HDF5 file: `pixels` of 28 x 28 floats, or with `colour` `image` of 32 x 32 x 3 bytes."""
    h5py = optional("h5py", "hdf5")
    draw = rng.numpy_generator(seed, "write", path.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for client in range(clients):
            labels = draw.integers(0, classes, int(draw.integers(per_client[0], per_client[1] + 1))).astype(np.int32)
            group = file.create_group(f"examples/f{client:04d}_00")
            if colour:
                group["image"], group["label"] = _patterns(labels, (32, 32, 3), draw), labels.astype(np.int64)
                group["coarse_label"] = labels // 5
            else:
                pixels = _patterns(labels, (28, 28), draw).astype(np.float32) / 255
                group.create_dataset("pixels", data=pixels, compression="gzip")
                group["label"] = labels
    return path


def write_brats(root: Path, *, cases: int = 4, size: tuple[int, int, int] = (24, 24, 20), seed: int = 0) -> Path:
    """Cases with ellipsoid tumours, half of them HGG; labels 2 (oedema), 1 (core) and 4 (enhancing), nested."""
    codes = np.array([0, 2, 1, 4], np.uint8)
    for number in range(cases):
        draw = rng.numpy_generator(seed, "write", "brats", number)
        name = f"Brats18_{('CBICA', 'TCIA01', '2013')[number % 3]}_{number:03d}_1"
        folder = root / brats.FOLDERS[0] / brats.GRADES[number % 2] / name
        scan, depth = tumour(draw, size, modalities=4)
        for modality, volume in zip(brats.MODALITIES, scan, strict=True):
            write_nifti(folder / f"{name}_{modality}.nii.gz", volume.astype(np.int16))
        write_nifti(folder / f"{name}_seg.nii.gz", codes[depth])
    return root


def write_decathlon(
    root: Path, *, cases: int = 5, sizes: Sequence[tuple[int, int, int]] = ((12, 16, 10), (15, 11, 13)), seed: int = 0
) -> Path:
    """Pairs of one modality with labels 0, 1, 2, of different sizes and wildly different intensities."""
    for number in range(cases):
        draw = rng.numpy_generator(seed, "write", "decathlon", number)
        scan, depth = tumour(draw, sizes[number % len(sizes)], modalities=1)
        name = f"case_{number:03d}.nii.gz"
        write_nifti(root / "images" / name, scan[0] * float(10.0 ** draw.integers(0, 5)))
        write_nifti(root / "labels" / name, np.minimum(depth, 2).astype(np.uint8))
    return root


def write_nifti(path: Path, values: np.ndarray) -> Path:
    """One volume with 1 mm voxels."""
    nibabel = optional("nibabel", "medical")
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), path)
    return path


def write_play(root: Path, *, speeches: int = 12) -> Path:
    """A play of two speakers, as text."""
    root.mkdir(parents=True, exist_ok=True)
    speech = "What news of the city, and who goes there?\nSpeak.\n"
    path = root / "play.txt"
    path.write_text("".join(f"{('FIRST', 'SECOND')[number % 2]}:\n{speech}\n" for number in range(speeches)))
    return path
