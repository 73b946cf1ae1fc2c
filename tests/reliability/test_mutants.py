"""Mutants are the small faults that they say they are, each compiled into one function."""

from __future__ import annotations

import types
from pathlib import Path

import pytest
from reliability.mutant_trials import GUARDS, SOURCE, core, drawn
from reliability.mutants import Mutant, mutants

TEXT = '''"""A module."""

LIMIT = 3


class Box:
    """A box."""

    def __init__(self, size: int = 1) -> None:
        self.size = size

    @property
    def full(self) -> bool:
        """Whether nothing fits in."""
        return not self.size < LIMIT and True


def check(size):
    """Refuse a size."""
    if size > 5:
        raise ValueError(f"{size + 1} is too much")
    found = [n for n in range(size) if n % 2]
    found.append(size - 1)
    return found
'''


@pytest.fixture
def every(tmp_path: Path) -> list[Mutant]:
    (tmp_path / "module.py").write_text(TEXT)
    return mutants(tmp_path / "module.py")


def test_every_kind_of_fault_is_there_and_messages_defaults_and_annotations_are_left_alone(every: list[Mutant]) -> None:
    assert [(one.function, one.line, one.change) for one in every] == [
        ("Box.full", 15, "return None"),
        ("Box.full", 15, "Or instead of And: not self.size < LIMIT and True"),
        ("Box.full", 15, "without 'not self.size < LIMIT'"),
        ("Box.full", 15, "without 'True'"),
        ("Box.full", 15, "without not: self.size < LIMIT"),
        ("Box.full", 15, "LtE instead of Lt: self.size < LIMIT"),
        ("Box.full", 15, "False"),
        ("check", 20, "not size > 5"),
        ("check", 20, "GtE instead of Gt: size > 5"),
        ("check", 20, "6 instead of 5"),
        ("check", 21, "without \"raise ValueError(f'{size + 1} is too much')\""),
        ("check", 22, "every one in a comprehension"),
        ("check", 22, "Mult instead of Mod: n % 2"),
        ("check", 22, "3 instead of 2"),
        ("check", 23, "without 'found.append(size - 1)'"),
        ("check", 23, "Add instead of Sub: size - 1"),
        ("check", 23, "2 instead of 1"),
        ("check", 24, "return None"),
    ]


def test_the_code_of_a_mutant_does_what_it_says(every: list[Mutant]) -> None:
    module = types.ModuleType("module")
    exec(compile(TEXT, str(every[0].path), "exec"), module.__dict__)
    codes = {one.change: one.code() for one in every if one.function == "check"}

    def outcome(change: str, size: int) -> object:
        code = codes[change]
        assert code is not None
        return types.FunctionType(code, module.__dict__)(size)

    assert module.check(4) == [1, 3, 3]
    assert outcome("every one in a comprehension", 4) == [0, 1, 2, 3, 3]
    assert outcome("without 'found.append(size - 1)'", 4) == [1, 3]
    assert outcome("Add instead of Sub: size - 1", 4) == [1, 3, 5]
    assert outcome("without \"raise ValueError(f'{size + 1} is too much')\"", 6) == [1, 3, 5, 5]
    assert outcome("return None", 4) is None
    with pytest.raises(ValueError, match="5 is too much"):
        outcome("not size > 5", 4)


def test_the_same_seed_draws_the_same_mutants_of_the_core_and_every_file_has_its_guards() -> None:
    assert drawn(5, 3) == drawn(5, 3) != drawn(5, 4)
    for path in core():
        name = str(path.relative_to(SOURCE))
        assert sum(name.startswith(beginning) for beginning in GUARDS) == 1, name
    for tests in GUARDS.values():
        for test in tests:
            assert (SOURCE.parents[1] / "tests" / test).exists(), test
