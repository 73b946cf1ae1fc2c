"""Progressive federated learning: the same accuracy for fewer bytes and fewer FLOPs."""

from progfed.blocks import Progressive, pooled_head
from progfed.codec import Chain, Quantize, Sparsify
from progfed.engines.local import LocalEngine
from progfed.errors import ProgfedError
from progfed.examples import Examples, FederatedData, from_clients
from progfed.experiment import Experiment, run
from progfed.federate import federate
from progfed.rate import Constant, Cosine, MultiStep, PerStage, Restart
from progfed.recipe import Local, Recipe
from progfed.schedule import Phase, end_to_end, progressive
from progfed.server import fedadagrad, fedadam, fedavg, fedavgm, fedyogi
from progfed.split import split

__version__ = "0.1.0"

__all__ = [
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
