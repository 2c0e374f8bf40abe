"""An experiment as one validated object, and as one TOML file. This package needs no torch."""

from fedilc.config.experiment import (
    Experiment,
    has_study,
    parse_experiment,
    read_experiment,
    read_study_file,
    register_experiments,
    register_source,
    shipped_experiments,
)
from fedilc.config.options import Options
from fedilc.section import validated

__all__ = [
    "Experiment",
    "Options",
    "has_study",
    "parse_experiment",
    "read_experiment",
    "read_study_file",
    "register_experiments",
    "register_source",
    "shipped_experiments",
    "validated",
]
