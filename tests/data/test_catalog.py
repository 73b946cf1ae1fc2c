"""What is there, what is intact, and fetching: whole and verified, or not at all."""

import bz2
import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from progfed.data import catalog, cifar, idx, inventory
from progfed.data.catalog import CATALOG
from progfed.data.fetch import fetch
from progfed.data.inventory import DataSet, Download, File
from progfed.errors import DataError, UsageError
from reliability import data_files as files


def digest(path: Path, kind: str = "md5") -> str:
    return f"{kind}:{hashlib.new(kind, path.read_bytes()).hexdigest()}"


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing on the terminal of the tests."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the address it is served at."""
    folder = tmp_path / "served"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def small(address: str, content: bytes) -> DataSet:
    """A data set of one file, with the hash of this content."""
    file = File("set/file.bin", f"sha256:{hashlib.sha256(content).hexdigest()}")
    return replace(
        catalog.find("cifar10"), name="small", forms=((file,),), downloads=(Download(f"{address}/file.bin", file),)
    )


def test_every_data_set_says_what_it_is_where_it_goes_and_its_terms(tmp_path: Path) -> None:
    assert len({data.name for data in CATALOG}) == len(CATALOG) == 10
    for data in CATALOG:
        assert data.title
        assert data.terms
        assert data.size
        assert str(tmp_path) in data.place(tmp_path)
        assert all(download.file.digest for download in data.downloads)
        found = inventory.check(data, tmp_path)
        assert found.state == "missing"
        assert str(tmp_path) in found.detail


def test_the_archives_have_the_published_hashes() -> None:
    published = {
        "cifar10": "md5:c58f30108f718f92721af3b95e74349a",
        "cifar100": "md5:eb9058c3a382ffc7106e4002c42a8d85",
        "emnist": "sha256:fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0",
        "fed-cifar100": "sha256:e8575e22c038ecef1ce6c7d492d7abee7da13b1e1ba9b70a7fc18531ba7590de",
    }
    for name, expected in published.items():
        assert catalog.find(name).downloads[0].file.digest == expected


def test_files_with_other_hashes_are_reported_as_damaged_by_name(tmp_path: Path) -> None:
    files.write_cifar(tmp_path, number=3)
    found = inventory.check(catalog.find("cifar10"), tmp_path)
    assert found.state == "damaged"
    assert "data_batch_1" in found.detail
    assert inventory.locate(catalog.find("cifar10"), tmp_path).state == "found"


def test_an_incomplete_folder_is_damaged_and_not_missing(tmp_path: Path) -> None:
    folder = files.write_cifar(tmp_path, number=3)
    (folder / "data_batch_1").unlink()
    found = inventory.check(catalog.find("cifar10"), tmp_path)
    assert found.state == "damaged"
    assert "data_batch_1" in found.detail


def test_sets_without_hashes_are_checked_by_reading_them(tmp_path: Path) -> None:
    files.write_decathlon(tmp_path / "msd_hippocampus", cases=3)
    assert inventory.check(catalog.find("hippocampus"), tmp_path).detail == "3 pairs"
    files.write_brats(tmp_path, cases=2, size=(6, 6, 6))
    assert inventory.check(catalog.find("brats2018"), tmp_path).detail == "2 cases"
    (tmp_path / "msd_hippocampus" / "labels" / "case_001.nii.gz").write_bytes(b"")
    assert "case_001" in inventory.check(catalog.find("hippocampus"), tmp_path).detail
    for which in ("train", "test"):
        files.write_federated_h5(tmp_path / f"fed_emnist_{which}.h5", clients=2, classes=62)
    assert "3,400" in inventory.check(catalog.find("emnist"), tmp_path).detail


def test_loading_by_name_passes_the_options_on_and_refuses_those_that_make_no_sense(tmp_path: Path) -> None:
    files.write_decathlon(tmp_path / "msd_hippocampus", cases=6)
    assert catalog.load("hippocampus", tmp_path, clients=3).clients == 3
    with pytest.raises(UsageError, match="choose iid"):
        catalog.load("hippocampus", tmp_path, partition="shards:2")
    with pytest.raises(UsageError, match="the clients it came with"):
        catalog.load("emnist", tmp_path, clients=3)
    with pytest.raises(UsageError, match="choose one of cifar10"):
        catalog.load("imagenet", tmp_path)


def test_a_download_is_verified_reported_and_put_in_place_whole(tmp_path: Path, served: tuple[Path, str]) -> None:
    folder, address = served
    content = bytes(range(256)) * 20_000
    (folder / "file.bin").write_bytes(content)
    steps: list[tuple[str, int, int | None]] = []
    root = tmp_path / "root"
    data = small(address, content)
    assert fetch(data, root, progress=lambda *step: steps.append(step)) == [root / "set/file.bin"]
    assert (root / "set/file.bin").read_bytes() == content
    assert tree(root) == ["set", "set/file.bin"]
    assert (root / "set/file.bin").stat().st_mode & 0o777 == 0o644
    assert steps[-1] == ("set/file.bin", len(content), len(content))
    assert [done for _, done, _ in steps] == sorted(done for _, done, _ in steps)
    assert fetch(data, root) == []  # intact: left alone


@pytest.mark.parametrize("trouble", ["wrong content", "cut short", "not found", "no server", "too large"])
def test_a_download_that_goes_wrong_leaves_nothing_and_says_where_to_put_the_file(
    tmp_path: Path, served: tuple[Path, str], trouble: str
) -> None:
    folder, address = served
    content = b"what was published" * 1000
    if trouble != "not found":
        (folder / "file.bin").write_bytes(
            {"wrong content": b"another", "cut short": content[:-5]}.get(trouble, content)
        )
    data = small("http://127.0.0.1:9" if trouble == "no server" else address, content)
    if trouble == "too large":
        data = replace(data, downloads=(replace(data.downloads[0], cap=1000),))
    root = tmp_path / "root"
    with pytest.raises(DataError) as caught:
        fetch(data, root)
    assert str(root / "set/file.bin") in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not root.exists()


def test_a_damaged_file_is_replaced_and_kept_when_the_new_one_is_no_better(
    tmp_path: Path, served: tuple[Path, str]
) -> None:
    folder, address = served
    data = small(address, b"right")
    (tmp_path / "root/set").mkdir(parents=True)
    (tmp_path / "root/set/file.bin").write_bytes(b"old")
    (folder / "file.bin").write_bytes(b"wrong")
    with pytest.raises(DataError):
        fetch(data, tmp_path / "root")
    assert (tmp_path / "root/set/file.bin").read_bytes() == b"old"
    (folder / "file.bin").write_bytes(b"right")
    fetch(data, tmp_path / "root")
    assert (tmp_path / "root/set/file.bin").read_bytes() == b"right"


def test_a_data_set_without_an_address_says_where_to_get_it_and_put_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="registration") as caught:
        fetch(catalog.find("brats2018"), tmp_path)
    assert str(tmp_path / "MICCAI_BraTS_2018_Data_Training") in str(caught.value)


def tarball(path: Path, contents: dict[str, bytes], links: tuple[str, ...] = ()) -> Path:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name in links:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
            tar.addfile(member)
    path.write_bytes(bz2.compress(buffer.getvalue()) if path.suffix == ".bz2" else buffer.getvalue())
    return path


def packed(path: Path, members: dict[str, str]) -> DataSet:
    """A data set that comes as this archive."""
    download = Download("", File(path.name, digest(path, "sha256")), members)
    base = replace(catalog.find("cifar10"), name="packed", forms=((File("a.h5"), File("b.h5")),), inspect=None)
    return replace(base, downloads=(download,))


def test_an_archive_from_a_folder_is_unpacked_to_the_catalogs_names_alone(tmp_path: Path) -> None:
    path = tarball(tmp_path / "set.tar.bz2", {"a.h5": b"A", "b.h5": b"B", "../evil": b"E", "readme": b"R"})
    root = tmp_path / "root"
    placed = fetch(packed(path, {"a.h5": "a.h5", "b.h5": "b.h5"}), root, source=tmp_path)
    assert placed == [root / "a.h5", root / "b.h5"]
    assert tree(root) == ["a.h5", "b.h5"]
    assert (root / "b.h5").read_bytes() == b"B"


def test_the_plain_volumes_of_a_folder_in_an_archive_are_unpacked_and_nothing_that_climbs(tmp_path: Path) -> None:
    names = [
        "T/imagesTr/x.nii.gz",
        "T/imagesTr/._x.nii.gz",
        "T/imagesTr/../../y.nii.gz",
        "T/imagesTr/deep/z.nii.gz",
        "T/a.txt",
    ]
    path = tarball(tmp_path / "T.tar", {name: name.encode() for name in names})
    root = tmp_path / "root"
    assert fetch(packed(path, {"T/imagesTr/*": "T/imagesTr"}), root, source=tmp_path) == [root / "T/imagesTr/x.nii.gz"]
    assert tree(root) == ["T", "T/imagesTr", "T/imagesTr/x.nii.gz"]


@pytest.mark.parametrize("trouble", ["a link", "a member missing", "another hash"])
def test_a_bad_archive_from_a_folder_is_refused_and_nothing_is_written(tmp_path: Path, trouble: str) -> None:
    contents = {"b.h5": b"B"} if trouble != "another hash" else {"a.h5": b"A", "b.h5": b"B"}
    path = (
        tarball(tmp_path / "set.tar.bz2", {}, ("a.h5",))
        if trouble == "a link"
        else tarball(tmp_path / "set.tar.bz2", contents)
    )
    data = packed(path, {"a.h5": "a.h5", "c.h5": "c.h5"})
    if trouble == "another hash":
        path.write_bytes(bz2.compress(b"other"))
    with pytest.raises(DataError, match=r"set\.tar\.bz2"):
        fetch(data, tmp_path / "root", source=tmp_path)
    assert not (tmp_path / "root").exists()


def test_files_from_a_folder_are_copied_once_their_hashes_match(tmp_path: Path) -> None:
    files.write_idx(tmp_path / "from", idx.FASHION_MNIST, number=8)
    real = catalog.find("fashion-mnist")
    with pytest.raises(DataError, match="not the published file"):
        fetch(real, tmp_path / "root", source=tmp_path / "from")
    assert not (tmp_path / "root").exists()
    folder = tmp_path / "from" / "fashion-mnist"
    made = replace(real, forms=(tuple(File(f"fashion-mnist/{p.name}", digest(p)) for p in sorted(folder.iterdir())),))
    made = replace(made, downloads=())
    assert len(fetch(made, tmp_path / "root", source=tmp_path / "from")) == 4
    flat = fetch(made, tmp_path / "flat", source=folder)  # the files alone, without their folder
    assert [path.parent.name for path in flat] == ["fashion-mnist"] * 4
    assert sum(idx.fashion_mnist(tmp_path / "flat", clients=2, verify=False).sizes) == 8


def test_a_folder_of_volumes_is_copied_with_its_inside(tmp_path: Path) -> None:
    files.write_decathlon(tmp_path / "from" / "msd_hippocampus", cases=3)
    placed = fetch(catalog.find("hippocampus"), tmp_path / "root", source=tmp_path / "from")
    assert len(placed) == 6
    assert inventory.check(catalog.find("hippocampus"), tmp_path / "root").state == "intact"


def test_a_folder_that_lacks_the_data_set_is_refused_with_what_it_should_hold(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not hold cifar10") as caught:
        fetch(catalog.find("cifar10"), tmp_path / "root", source=tmp_path)
    assert cifar.CIFAR10.archive in str(caught.value)


def test_a_root_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file, not a folder")
    files.write_decathlon(tmp_path / "from" / "msd_hippocampus", cases=2)
    with pytest.raises(DataError, match="cannot be written"):
        fetch(catalog.find("hippocampus"), tmp_path / "root", source=tmp_path / "from")
