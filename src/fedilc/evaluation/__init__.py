"""How good a model is, how evenly, and which round's model to report."""

from fedilc.evaluation.fairness import fairness
from fedilc.evaluation.metrics import measure
from fedilc.evaluation.selection import CRITERIA, select
from fedilc.evaluation.thresholded import thresholded_areas

__all__ = ["CRITERIA", "fairness", "measure", "select", "thresholded_areas"]
