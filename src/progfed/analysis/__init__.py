"""What a run's own models say about it afterwards: alignment and norm discrepancy, segmentations, and the theorem."""

from progfed.analysis.discrepancy import Discrepancy, measure
from progfed.analysis.slices import draw_slices
from progfed.analysis.source import Trained, open_run
from progfed.analysis.theorem import Bound, Quadratic, check_bound

__all__ = ["Bound", "Discrepancy", "Quadratic", "Trained", "check_bound", "draw_slices", "measure", "open_run"]
