"""Several metrics, measured by the clients themselves."""

from torch import Tensor

from progfed import Metric, OnClients
from progfed.metrics import accuracy


def confidence(outputs: Tensor, targets: Tensor) -> Tensor:
    """The probability of the right class."""
    return outputs.softmax(1).gather(1, targets[:, None])[:, 0]


METRICS = {"accuracy": accuracy, "confidence": Metric(confidence, of="each")}
SETTINGS = {"method": OnClients(metrics=METRICS)}
