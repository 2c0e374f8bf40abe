"""Metrics of a model, its fairness over silos, and the choice of the round whose model is reported."""

from fedilc.evaluation.metrics import fairness, measure, thresholded_areas
from fedilc.evaluation.selection import CRITERIA, select

__all__ = ["CRITERIA", "fairness", "measure", "select", "thresholded_areas"]
