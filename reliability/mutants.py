"""Small faults put into the core by machine, one at a time: a comparison turned round, a call left out, one too many.

A mutant is one function with one fault. Which faults there are follows from the syntax alone, so nobody chooses those
that the tests are known to find.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
"""What an operator becomes."""


@dataclass(frozen=True)
class Mutant:
    """A fault: the file and the line, the function and its first line, what it changes, and its number in the file."""

    path: Path
    line: int
    function: str
    first: int
    change: str
    number: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.path.name}:{self.line} {self.function}: {self.change}"

    def code(self) -> CodeType | None:
        """The function with the fault in it; None where Python refuses to compile it."""
        tree = ast.parse(self.path.read_text())
        node = _nodes(tree)[self.number[0]].node
        altered = list(_faults(node))[self.number[1]][1]
        _put(tree, node, altered)
        try:
            compiled = compile(ast.fix_missing_locations(tree), str(self.path), "exec")
        except SyntaxError:  # a function whose only `yield` is gone, or that lost the name it gives back
            return None
        return next(code for code in _functions(compiled) if code.co_firstlineno == self.first)


def mutants(path: Path) -> list[Mutant]:
    """All mutants of the functions of a file."""
    return [
        Mutant(path, found.node.lineno, found.function, found.first, change, (number, which))  # type: ignore[attr-defined]
        for number, found in enumerate(_nodes(ast.parse(path.read_text())))
        for which, (change, _) in enumerate(_faults(found.node))
        if hasattr(found.node, "lineno")
    ]


@dataclass(frozen=True)
class _Node:
    """A node inside a function: one that belongs to no other function."""

    node: ast.AST
    function: str
    first: int


def _nodes(tree: ast.AST) -> list[_Node]:
    """The nodes of the bodies of functions, without docstrings, annotations, decorators, defaults and messages."""
    found: list[_Node] = []

    def visit(node: ast.AST, name: str, first: int, inside: bool) -> None:
        if isinstance(node, ast.ClassDef) and not inside:
            for statement in node.body:
                visit(statement, f"{name}{node.name}.", 0, False)
            return
        if isinstance(node, ast.FunctionDef):
            if not inside:
                name, first = f"{name}{node.name}", min(one.lineno for one in (node, *node.decorator_list))
            for statement in node.body:
                visit(statement, name, first, True)
            return
        if isinstance(node, ast.JoinedStr | ast.Assert):
            return
        if inside:
            found.append(_Node(node, name, first))
        if isinstance(node, ast.Raise):
            return
        for field, child in ast.iter_fields(node):
            if field != "annotation":
                for one in child if isinstance(child, list) else [child]:
                    if isinstance(one, ast.AST):
                        visit(one, name, first, inside)

    visit(tree, "", 0, False)
    return found


def _faults(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """What could be wrong here: a word for it, and the node that stands there then."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in SWAPPED:
            yield _swap(node, operator, "ops", [SWAPPED[type(operator)]()])
        case ast.BoolOp(op=operator, values=values):
            yield _swap(node, operator, "op", SWAPPED[type(operator)]())
            for index in range(len(values)):
                kept = [value for place, value in enumerate(values) if place != index]
                shorter = kept[0] if len(kept) == 1 else ast.BoolOp(op=operator, values=kept)
                yield f"without {ast.unparse(values[index])!r}", shorter
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator) if type(operator) in SWAPPED:
            if not _is_text(node):
                yield _swap(node, operator, "op", SWAPPED[type(operator)]())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"without not: {ast.unparse(operand)}", operand
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield f"without minus: {ast.unparse(operand)}", operand
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            turned = copy.deepcopy(node)
            turned.test = ast.UnaryOp(op=ast.Not(), operand=test)  # type: ignore[attr-defined]
            yield f"not {ast.unparse(test)}", turned
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            for place, generator in enumerate(node.generators):
                if generator.ifs:
                    bare = copy.deepcopy(node)
                    bare.generators[place].ifs = []
                    yield "every one in a comprehension", bare
        case ast.Constant(value=bool(value)):
            yield f"{not value}", ast.Constant(value=not value)
        case ast.Constant(value=int(value)):
            yield f"{value + 1} instead of {value}", ast.Constant(value=value + 1)
        case ast.Constant(value=float(value)):
            yield f"{2 * value + 1} instead of {value}", ast.Constant(value=2 * value + 1)
        case ast.Expr(value=ast.Call()) | ast.Raise():
            yield f"without {ast.unparse(node).splitlines()[0][:60]!r}", ast.Pass()
        case ast.Continue():
            yield "break instead of continue", ast.Break()
        case ast.Break():
            yield "continue instead of break", ast.Continue()
        case ast.Return(value=value) if value is not None and not _is_none(value):
            yield "return None", ast.Return(value=ast.Constant(value=None))


def _swap(node: ast.AST, operator: ast.AST, field: str, new: object) -> tuple[str, ast.AST]:
    changed = copy.deepcopy(node)
    setattr(changed, field, new)
    become = new[0] if isinstance(new, list) else new
    return f"{type(become).__name__} instead of {type(operator).__name__}: {ast.unparse(node)[:60]}", changed


def _is_text(node: ast.AST) -> bool:
    """Whether an operator joins or formats texts, where another would only be a TypeError."""
    sides = [getattr(node, side, None) for side in ("left", "right", "value")]
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in sides
    )


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _put(tree: ast.AST, place: ast.AST, new: ast.AST) -> None:
    """Replace a node, which stands in one place of the tree."""
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is place:
                setattr(parent, field, new)
                return
            if isinstance(value, list):
                for index, item in enumerate(value):
                    if item is place:
                        value[index] = new
                        return


def _functions(code: CodeType) -> Iterator[CodeType]:
    """The functions of a module and of its classes; not those inside functions, which belong to them."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & 0x02:  # CO_NEWLOCALS: a function, where a class body is none
                yield constant
            else:
                yield from _functions(constant)
