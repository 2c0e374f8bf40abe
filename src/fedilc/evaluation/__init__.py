"""Metrics of a model, its fairness over silos, and the choice of the round whose model is reported."""

from fedilc.evaluation.fairness import fairness
from fedilc.evaluation.metrics import measure
from fedilc.evaluation.selection import CRITERIA, select
from fedilc.evaluation.thresholded import thresholded_areas

__all__ = ["CRITERIA", "fairness", "measure", "select", "thresholded_areas"]
