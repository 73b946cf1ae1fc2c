"""What the tests of broken files share: the error they must end in, and how a file is cut short."""

from collections.abc import Callable
from pathlib import Path

import pytest

from progfed.errors import DataError

Refused = Callable[[Path, Callable[[], object], str], str]


@pytest.fixture
def refused() -> Refused:
    """A check that loading ends in one DataError naming the file, with nothing run, made, changed or lost."""
    return _refused


def _refused(root: Path, load: Callable[[], object], named: str) -> str:
    """The message of the DataError; checked to be one line that names the file, with no file made, changed or lost."""
    before = _snapshot(root)
    with pytest.raises(DataError) as caught:
        load()
    message = str(caught.value)
    assert named in message
    assert "\n" not in message
    assert len(message) < 600
    assert _snapshot(root) == before
    assert not (root / "EXECUTED").exists()
    return message


def _snapshot(root: Path) -> dict[str, tuple[int, int]]:
    status = {path: path.lstat() for path in root.rglob("*")}
    return {str(path): (one.st_size, one.st_mtime_ns) for path, one in status.items()}
