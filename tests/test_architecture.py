"""The house rules that can be checked: who may import whom, what is public, and what importing costs."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import progfed

SOURCE = Path(progfed.__file__).parent

# from left to right: a layer imports from itself and from those before it
LAYERS = [
    {"errors"},
    {"tensors", "rng", "live"},
    {"schedule", "rate", "examples"},
    {"blocks", "codec", "server", "aggregate", "privacy", "growth", "course"},
    {"fast", "heads"},
    {"flops", "budget", "protocol", "evaluate", "losses", "published"},
    {"recipe"},
    {"replica"},
    {"client", "downlink", "inbox", "memory"},
    {"federate"},
    {"engines", "checkpoint"},
    {"deploy"},
    {"models", "data", "records", "split"},
    {"saving", "keeping", "board", "identity"},
    {"experiment"},
    {"experiments", "plan", "settings", "flower", "overview", "user_model"},
    {"analysis"},
    {"report", "chaos"},
    {"cli"},
    {"__main__", "templates"},
]
ONLY_IN = {
    "matplotlib": {"report"},
    "flwr": {"engines"},
    "typer": {"cli"},
    "rich": {"cli"},
    "h5py": {"data"},
    "nibabel": {"data"},
    "dp_accounting": {"privacy"},
    "tensorboard": {"board"},
}


def imports(path: Path) -> set[str]:
    """Modules that a file imports, with `from progfed import x` read as `progfed.x`."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"progfed.{a.name}" for a in node.names} if node.module == "progfed" else {node.module}
    return found


def files() -> list[tuple[str, Path]]:
    """Every source file with the layer's name it belongs to."""
    found = [(path.relative_to(SOURCE).parts[0].removesuffix(".py"), path) for path in SOURCE.rglob("*.py")]
    return [(top, path) for top, path in found if top != "__init__"]


def test_every_module_has_its_layer() -> None:
    assert {top for top, _ in files()} == set().union(*LAYERS)


@pytest.mark.parametrize(("top", "path"), files(), ids=lambda value: str(getattr(value, "name", value)))
def test_left_never_imports_right(top: str, path: Path) -> None:
    rank = {name: index for index, layer in enumerate(LAYERS) for name in layer}
    for module in imports(path):
        if module.startswith("progfed.") and (other := module.split(".")[1]) in rank:
            assert rank[other] <= rank[top], f"{path.name} imports {module}"
        elif (package := module.split(".")[0]) in ONLY_IN:
            assert top in ONLY_IN[package], f"{path.name} imports {package}"


def test_engines_do_not_know_the_loop_and_the_loop_does_not_know_engines() -> None:
    guarded = list((SOURCE / "engines").rglob("*.py"))
    assert SOURCE / "engines" / "flower" / "grid.py" in guarded
    for path in guarded:
        assert "progfed.federate" not in imports(path), path
    assert not any(module.startswith("progfed.engines") for module in imports(SOURCE / "federate.py"))


def test_no_command_imports_the_command_line_that_mounts_it() -> None:
    for path in (SOURCE / "cli").glob("[a-z]*.py"):
        assert "progfed.cli" not in imports(path), path


def test_only_the_command_line_prints() -> None:
    for top, path in files():
        if top == "cli":
            continue
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        assert not any(isinstance(call.func, ast.Name) and call.func.id == "print" for call in calls), path


def test_nothing_seeds_torch_globally() -> None:
    for _, path in files():
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        for call in calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "manual_seed":
                assert "Generator()" in ast.unparse(call.func.value), path


def test_the_public_surface_is_what_it_was() -> None:
    assert sorted(progfed.__all__) == [
        "Chain",
        "Constant",
        "Cosine",
        "Examples",
        "Experiment",
        "FederatedData",
        "Local",
        "LocalEngine",
        "MultiStep",
        "PerStage",
        "Phase",
        "ProgfedError",
        "Progressive",
        "Quantize",
        "Recipe",
        "Restart",
        "Sparsify",
        "end_to_end",
        "fedadagrad",
        "fedadam",
        "fedavg",
        "fedavgm",
        "federate",
        "fedyogi",
        "from_clients",
        "pooled_head",
        "progressive",
        "run",
        "split",
    ]
    assert all(hasattr(progfed, name) for name in progfed.__all__)


def test_importing_the_core_loads_no_extra() -> None:
    extras = ("matplotlib", "h5py", "nibabel", "flwr", "typer", "tensorboard", "torch._dynamo")
    code = f"import progfed, sys; print(*[name for name in {extras} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []


def modules() -> list[str]:
    return [found.name for found in pkgutil.walk_packages([str(SOURCE)], "progfed.") if "__" not in found.name]


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    extra = {"torch": importlib.import_module("torch"), "nn": importlib.import_module("torch.nn")}
    assert doctest.testmod(module, extraglobs=extra).failed == 0


def test_every_public_function_and_class_has_a_docstring() -> None:
    bare = []
    for _, path in files():
        for node in ast.parse(path.read_text()).body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            if public and not ast.get_docstring(node):  # type: ignore[arg-type]
                bare.append(f"{path.name}:{node.name}")  # type: ignore[attr-defined]
    assert bare == []
