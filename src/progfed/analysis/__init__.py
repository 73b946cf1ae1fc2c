"""What the models that a run kept tell: alignment and norm discrepancy, segmentations; and the theorem in numbers."""

from progfed.analysis.discrepancy import Discrepancy, measure
from progfed.analysis.slices import draw_slices
from progfed.analysis.source import Trained, open_run
from progfed.analysis.theorem import Bound, Quadratic, check_bound

__all__ = ["Bound", "Discrepancy", "Quadratic", "Trained", "check_bound", "draw_slices", "measure", "open_run"]
