"""The fixtures of the report's tests."""

from .report_runs import edited, runs, trained

__all__ = ["edited", "runs", "trained"]
