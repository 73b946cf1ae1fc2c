"""The house rules that can be checked: who may import whom, what is public, and what importing costs."""

from __future__ import annotations

import ast
import doctest
import graphlib
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import progfed

SOURCE = Path(progfed.__file__).parent

# from the ground up, as in docs/architecture.md: a floor imports from itself and from those below it
FLOORS = [
    {"errors", "tensors", "rng", "schedule", "blocks", "heads", "population", "devices", "files", "by_path"},
    {"codec"},
    {"recipe"},
    {"wire"},
    {"client"},
    {"costs", "split"},
    {"evaluate", "metrics", "on_clients", "losses"},
    {"server", "engines"},
    {"data", "models"},
    {"runs"},
    {"experiments", "flower"},
    {"analysis"},
    {"report"},
    {"cli"},
]
OUTSIDE = {"__main__", "old_paths", "templates"}
ONLY_IN = {
    "matplotlib": {"report"},
    "flwr": {"flower"},
    "typer": {"cli"},
    "rich": {"cli", "runs"},
    "h5py": {"data"},
    "nibabel": {"data"},
    "dp_accounting": {"recipe"},
    "tensorboard": {"runs"},
    "wandb": {"runs"},
    "mlflow": {"runs"},
}


def files() -> list[tuple[str, Path]]:
    """Every source file with the name of its floor: the folder, or the module at the top of the package."""
    found = [(path.relative_to(SOURCE).parts[0].removesuffix(".py"), path) for path in SOURCE.rglob("*.py")]
    return [(top, path) for top, path in found if top != "__init__"]


def module_of(path: Path) -> str:
    """The dotted name of a source file."""
    return ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in SOURCE.rglob("*.py")}


def imports(path: Path) -> set[str]:
    """Modules that a file imports anywhere, inside functions too; `from package import module` is that module."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in inside}
    return found


def test_every_module_has_its_floor() -> None:
    assert {top for top, _ in files()} == set().union(*FLOORS) | OUTSIDE


def test_the_architecture_page_shows_the_same_floors() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text().split("```")[1]
    columns = [re.split(r"\s{2,}", line) for line in page.strip().splitlines()]
    shown = [set(f"{row[0]} {row[2] if len(row) > 3 else ''}".split()) for row in columns]
    assert shown == FLOORS[::-1]


@pytest.mark.parametrize(("top", "path"), files(), ids=lambda value: str(getattr(value, "name", value)))
def test_no_floor_imports_from_one_above(top: str, path: Path) -> None:
    rank = {name: index for index, floor in enumerate(FLOORS) for name in floor}
    for module in imports(path) if top not in OUTSIDE else ():
        if module.startswith("progfed.") and (other := module.split(".")[1]) in rank:
            assert rank[other] <= rank[top], f"{path.name} imports {module}"
        elif (package := module.split(".")[0]) in ONLY_IN:
            assert top in ONLY_IN[package], f"{path.name} imports {package}"


def test_there_are_no_cycles_lazy_imports_included() -> None:
    graph = {name: {found for found in imports(path) if found in MODULES} - {name} for name, path in MODULES.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def test_server_and_engines_do_not_know_each_other() -> None:
    for here, there in (("server", "progfed.engines"), ("engines", "progfed.server")):
        for path in (SOURCE / here).rglob("*.py"):
            assert not any(module.startswith(there) for module in imports(path)), path


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
        "Aggregate",
        "Around",
        "Buffered",
        "Chain",
        "Codec",
        "Coder",
        "Constant",
        "Cosine",
        "Device",
        "DeviceMix",
        "Ema",
        "Engine",
        "Examples",
        "Experiment",
        "FedDyn",
        "FederatedData",
        "Flow",
        "Growth",
        "Local",
        "LocalEngine",
        "MessageError",
        "Method",
        "Metric",
        "Moment",
        "MultiStep",
        "OnClients",
        "PerStage",
        "Personal",
        "Phase",
        "ProgfedError",
        "Progressive",
        "Quantize",
        "Rate",
        "Recipe",
        "Restart",
        "Scaffold",
        "ServerOptimizer",
        "Sparsify",
        "StepLimit",
        "Task",
        "Update",
        "Visit",
        "Watch",
        "end_to_end",
        "every_head",
        "export",
        "fedadagrad",
        "fedadam",
        "fedavg",
        "fedavgm",
        "federate",
        "fedyogi",
        "freezing",
        "from_clients",
        "from_datasets",
        "in_turns",
        "partitioned",
        "pooled_head",
        "progressive",
        "run",
        "split",
        "within_budget",
    ]
    assert all(hasattr(progfed, name) for name in progfed.__all__)


def test_importing_the_core_loads_no_extra() -> None:
    extras = (
        *("matplotlib", "h5py", "nibabel", "flwr", "typer", "tensorboard", "wandb", "mlflow", "torch._dynamo"),
        *("onnx", "onnxscript", "datasets", "transformers", "peft"),
    )
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
