"""The methods that a recipe or a command line can ask for by name."""

from __future__ import annotations

from progfed.recipe.feddyn import FedDyn
from progfed.recipe.method import PLAIN, Method
from progfed.recipe.personal import Personal
from progfed.recipe.scaffold import Scaffold

NAMED: dict[str, Method] = {"plain": PLAIN, "scaffold": Scaffold(), "feddyn": FedDyn(), "personal": Personal()}
"""Methods by name."""
