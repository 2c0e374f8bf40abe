"""An experiment as one validated object, and as one TOML file. This package needs no torch."""

from fedilc.config.experiment import (
    NETWORKS,
    Experiment,
    parse_experiment,
    read_experiment,
    read_study_file,
    register_source,
    shipped_experiments,
)
from fedilc.config.options import Options
from fedilc.config.section import validated

__all__ = [
    "NETWORKS",
    "Experiment",
    "Options",
    "parse_experiment",
    "read_experiment",
    "read_study_file",
    "register_source",
    "shipped_experiments",
    "validated",
]
