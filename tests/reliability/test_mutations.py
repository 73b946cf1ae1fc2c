"""The list of safeguards to disable is up to date: a moved line or a renamed test must not hide one."""

from __future__ import annotations

import pytest
from reliability.mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.safeguard)
def test_every_safeguard_is_found_in_the_source_and_the_test_that_has_to_notice_exists(mutation: Mutation) -> None:
    assert (ROOT / "src" / "progfed" / mutation.file).read_text().count(mutation.old) == 1
    file, name = mutation.noticed
    tests = [line for line in (ROOT / file).read_text().splitlines() if line.startswith("def test_")]
    assert any(name in line for line in tests)
