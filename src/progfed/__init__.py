"""Progressive federated learning: the same accuracy for fewer bytes and fewer FLOPs."""

from progfed.blocks import Progressive, pooled_head
from progfed.codec import Chain, Codec, Quantize, Sparsify
from progfed.codec.step import Coder, Flow
from progfed.costs.budget import within_budget
from progfed.data.datasets import from_datasets, partitioned
from progfed.devices import Device, DeviceMix
from progfed.engines.local import LocalEngine
from progfed.errors import MessageError, ProgfedError
from progfed.metrics import Metric
from progfed.old_paths import install as _find_old_paths
from progfed.on_clients import OnClients
from progfed.population import Examples, FederatedData, from_clients
from progfed.recipe.aggregate import Aggregate
from progfed.recipe.buffered import Buffered
from progfed.recipe.ema import Ema
from progfed.recipe.feddyn import FedDyn
from progfed.recipe.growth import Growth, Watch
from progfed.recipe.method import Around, Method, Visit
from progfed.recipe.optimizers import ServerOptimizer, fedadagrad, fedadam, fedavg, fedavgm, fedyogi
from progfed.recipe.personal import Personal
from progfed.recipe.rate import Constant, Cosine, Moment, MultiStep, PerStage, Rate, Restart
from progfed.recipe.recipe import Local, Recipe, StepLimit
from progfed.recipe.scaffold import Scaffold
from progfed.runs.experiment import Experiment
from progfed.runs.export import export
from progfed.runs.train import run
from progfed.schedule import Phase, end_to_end, every_head, freezing, in_turns, progressive
from progfed.server.loop import federate
from progfed.split import split
from progfed.wire.engine import Engine, Task, Update

__version__ = "0.2.0"

_find_old_paths()

__all__ = [
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
