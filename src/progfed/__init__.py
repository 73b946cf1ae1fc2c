"""Progressive federated learning: the same accuracy for fewer bytes and fewer FLOPs."""

__version__ = "0.1.0"
