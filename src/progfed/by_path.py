"""A user's own value by where it is: `package.module:name`, or `package.module:name(3, share=0.5)`."""

from __future__ import annotations

import ast
import importlib
import re
import sys
from pathlib import Path
from typing import Any

from progfed.errors import ProgfedError, UsageError

_PATH = re.compile(r"(?P<module>[A-Za-z_][\w.]*):(?P<name>[A-Za-z_][\w.]*)(?P<call>\(.*\))?", re.DOTALL)


def is_path(text: object) -> bool:
    """Whether a text has the form of an import path."""
    return isinstance(text, str) and _PATH.fullmatch(text.strip()) is not None


def by_path(text: str) -> Any:
    """What an import path stands for: the value of that name, or what it makes of literal arguments.

    The folder in which the command is given is looked into as well. Arguments are numbers, texts, tuples and the like;
    nothing in them is evaluated. A class without arguments is made with none.

    Args:
        text: Such as `mycodecs:Sign`, `mycodecs:Sign(3)` or `package.module:value`.

    >>> by_path("fractions:Fraction(3, denominator=4)"), by_path("math:pi")
    (Fraction(3, 4), 3.141592653589793)
    """
    match = _PATH.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no import path: write module:name, or module:name(3, share=0.5)")
    found = _found(match["module"], match["name"])
    if match["call"] is None and not isinstance(found, type):
        return found
    args, keywords = _arguments(match["call"] or "()", text)
    try:
        return found(*args, **keywords)
    except ProgfedError:
        raise
    except Exception as error:
        raise UsageError(f"{text} cannot be made ({type(error).__name__}: {error}): check its arguments") from error


def _found(module: str, name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:  # a script's own folder is on the path, that of an installed command is not
        sys.path.append(here)
    try:
        value = importlib.import_module(module)
    except Exception as error:
        raise UsageError(
            f"module {module} cannot be imported ({type(error).__name__}: {error}): is it installed, or in this folder?"
        ) from error
    for piece in name.split("."):
        if not hasattr(value, piece):
            raise UsageError(f"module {module} has no {name}: check the name after the colon")
        value = getattr(value, piece)
    return value


def _arguments(call: str, text: str) -> tuple[list[Any], dict[str, Any]]:
    try:
        node = ast.parse(f"f{call}", mode="eval").body
        if not isinstance(node, ast.Call) or any(keyword.arg is None for keyword in node.keywords):
            raise ValueError("no plain call")
        args = [ast.literal_eval(value) for value in node.args]
        return args, {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    except (ValueError, SyntaxError, TypeError) as error:
        raise UsageError(
            f"the arguments of {text} cannot be read: write numbers and texts, as in module:name(3, share=0.5)"
        ) from error
