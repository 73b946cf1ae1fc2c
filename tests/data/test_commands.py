"""`progfed data list | check | fetch | show`, and the picture of the labels."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from progfed.data import cifar
from progfed.data.catalog import CATALOG
from progfed.data.synthetic import classification, segmentation
from progfed.errors import DataError, StorageError, UsageError
from progfed.report.labels import draw_labels, label_counts, spread
from reliability import data_files as files

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:click")


def run(*arguments: object) -> Any:
    """The commands in this process, as the program calls them; errors come out as they are raised."""
    from typer.testing import CliRunner

    from progfed.cli.data import app

    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_list_names_every_data_set_with_its_place(tmp_path: Path) -> None:
    result = run("list", "--data", tmp_path, "--json")
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert [row["name"] for row in rows] == [data.name for data in CATALOG]
    assert all(row["state"] == "missing" and row["place"] for row in rows)
    assert "cifar10" in run("list", "--data", tmp_path).stdout


def test_check_of_everything_is_content_with_what_is_missing_and_of_a_name_is_not(tmp_path: Path) -> None:
    result = run("check", "--data", tmp_path, "--json")
    assert result.exit_code == 0
    assert {row["state"] for row in json.loads(result.stdout)} == {"missing"}
    named = run("check", "cifar10", "--data", tmp_path)
    assert isinstance(named.exception, DataError)
    assert named.exception.exit_code == 3


def test_check_reports_what_is_damaged_and_what_is_intact(tmp_path: Path) -> None:
    files.write_cifar(tmp_path, number=2)
    files.write_decathlon(tmp_path / "msd_hippocampus", cases=2)
    result = run("check", "--data", tmp_path, "--json")
    states = {row["name"]: row["state"] for row in json.loads(result.stdout)}
    assert states["cifar10"] == "damaged"
    assert states["hippocampus"] == "intact"
    assert isinstance(result.exception, DataError)
    assert "data_batch_1" in str(result.exception)


def test_fetch_copies_from_a_folder_once(tmp_path: Path) -> None:
    files.write_decathlon(tmp_path / "from" / "msd_hippocampus", cases=2)
    arguments = ("fetch", "hippocampus", "--data", tmp_path / "root", "--from", tmp_path / "from")
    assert len(json.loads(run(*arguments, "--json").stdout)["placed"]) == 4
    assert "already there" in run(*arguments).stdout
    assert isinstance(run("fetch", "nothing").exception, UsageError)


def test_show_counts_the_labels_of_each_client_and_draws_them(tmp_path: Path) -> None:
    files.write_decathlon(tmp_path / "msd_hippocampus", cases=8)
    picture = tmp_path / "labels.svg"
    arguments = ("show", "hippocampus", "--data", tmp_path, "--clients", 3, "--seed", 1)
    result = json.loads(run(*arguments, "--json", "--out", picture).stdout)
    assert result["clients"] == 3
    assert sum(row["examples"] for row in result["shown"]) == result["examples"] == 6
    assert all(sum(row["labels"]) == row["examples"] * 48 * 64 * 48 for row in result["shown"])
    assert picture.read_text().startswith("<?xml")
    table = run(*arguments, "--limit", 2).stdout
    assert "3 clients, 6 examples" in table


OWN = """
import torch, progfed
from torch.utils.data import TensorDataset
WHOLE = TensorDataset(torch.zeros(12, 2), torch.arange(12) % 3)
DATA = progfed.from_datasets(progfed.partitioned(WHOLE, clients=3, how="shards:1"), test=WHOLE)
def made(folder):
    return DATA
def broken(folder):
    return folder["no"]
"""


@pytest.mark.parametrize("name", ["DATA", "made"])
def test_show_takes_a_users_own_data_from_a_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    result = json.loads(run("show", f"{tmp_path / 'mine.py'}:{name}", "--json").stdout)
    assert result["clients"] == 3
    assert sorted(row["labels"] for row in result["shown"]) == [[0, 0, 4], [0, 4, 0], [4, 0, 0]]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("mine.py:DATTA",), "has no 'DATTA'; did you mean DATA"),
        (("mine.py:WHOLE",), "is of type TensorDataset: name what progfed.from_clients"),
        (("mine.py:broken",), "mine.py:broken cannot be made from the folder data: TypeError"),
        (("mine.py:DATA", "--clients", 2), "has the clients it came with"),
        (("yours.py:DATA",), "there is no file"),
    ],
)
def test_what_is_no_data_in_a_file_is_refused(tmp_path: Path, arguments: tuple[object, ...], sentence: str) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    place, *options = arguments
    with pytest.raises((UsageError, DataError), match=sentence):
        raise run("show", tmp_path / str(place), *options).exception


def test_counts_are_those_of_the_clients_and_add_up_to_the_data_set() -> None:
    data = classification(6, classes=4, shape=(2,))
    counts = label_counts(data, range(6))
    for client, row in enumerate(counts):
        assert row.tolist() == [int((data.client(client).targets == label).sum()) for label in range(4)]
    with pytest.raises(UsageError, match="overlapping regions"):
        label_counts(segmentation(1, size=(4, 4)), [0])


def test_the_clients_shown_are_spread_over_all() -> None:
    assert spread(3, 10) == [0, 1, 2]
    assert spread(1_000_000, 3) == [0, 500_000, 999_999]
    assert spread(5, 1) == [0]


@pytest.mark.parametrize("kind", ["svg", "png", "pdf"])
def test_a_picture_is_the_same_bytes_for_the_same_counts(tmp_path: Path, kind: str) -> None:
    counts = np.random.default_rng(0).integers(0, 50, (12, 5))
    once, again, other = (
        draw_labels(values, tmp_path / f"{name}.{kind}", clients=range(12), title="a title").read_bytes()
        for name, values in (("once", counts), ("again", counts), ("other", counts + 1))
    )
    assert once == again != other
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"again.{kind}", f"once.{kind}", f"other.{kind}"]


def test_a_picture_that_cannot_be_made_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    counts = np.ones((2, 2), int)
    with pytest.raises(UsageError, match="ends in"):
        draw_labels(counts, tmp_path / "labels.txt", clients=[0, 1], title="")
    with pytest.raises(StorageError, match="cannot be written"):
        draw_labels(counts, tmp_path / "nowhere" / "labels.svg", clients=[0, 1], title="")
    assert list(tmp_path.iterdir()) == []


def test_the_default_partition_of_cifar100_is_the_federated_one(tmp_path: Path) -> None:
    files.write_cifar(tmp_path, cifar.CIFAR100, number=60)
    data = cifar.cifar100(tmp_path, clients=6, verify=False)
    assert set(data.sizes) == {10}
