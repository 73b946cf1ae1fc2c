"""Progressive federated learning: the same accuracy for fewer bytes and fewer FLOPs."""

from progfed.blocks import Progressive, pooled_head
from progfed.codec import Chain, Quantize, Sparsify
from progfed.costs.budget import within_budget
from progfed.data.datasets import from_datasets, partitioned
from progfed.devices import Device, DeviceMix
from progfed.engines.local import LocalEngine
from progfed.errors import ProgfedError
from progfed.metrics import Metric
from progfed.old_paths import install as _find_old_paths
from progfed.on_clients import OnClients
from progfed.population import Examples, FederatedData, from_clients
from progfed.recipe.buffered import Buffered
from progfed.recipe.ema import Ema
from progfed.recipe.feddyn import FedDyn
from progfed.recipe.method import Method, Visit
from progfed.recipe.optimizers import fedadagrad, fedadam, fedavg, fedavgm, fedyogi
from progfed.recipe.personal import Personal
from progfed.recipe.rate import Constant, Cosine, MultiStep, PerStage, Restart
from progfed.recipe.recipe import Local, Recipe, StepLimit
from progfed.recipe.scaffold import Scaffold
from progfed.runs.experiment import Experiment
from progfed.runs.export import export
from progfed.runs.train import run
from progfed.schedule import Phase, end_to_end, every_head, freezing, in_turns, progressive
from progfed.server.loop import federate
from progfed.split import split

__version__ = "0.2.0"

_find_old_paths()

__all__ = [
    "Buffered",
    "Chain",
    "Constant",
    "Cosine",
    "Device",
    "DeviceMix",
    "Ema",
    "Examples",
    "Experiment",
    "FedDyn",
    "FederatedData",
    "Local",
    "LocalEngine",
    "Method",
    "Metric",
    "MultiStep",
    "OnClients",
    "PerStage",
    "Personal",
    "Phase",
    "ProgfedError",
    "Progressive",
    "Quantize",
    "Recipe",
    "Restart",
    "Scaffold",
    "Sparsify",
    "StepLimit",
    "Visit",
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
