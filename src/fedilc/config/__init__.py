"""An experiment as one validated object, and as one TOML file. This package needs no torch."""

from fedilc.config.experiment import (
    NETWORKS,
    Experiment,
    Network,
    parse_experiment,
    read_experiment,
    shipped_experiments,
)
from fedilc.config.options import Options
from fedilc.config.section import Section, validated

__all__ = [
    "NETWORKS",
    "Experiment",
    "Network",
    "Options",
    "Section",
    "parse_experiment",
    "read_experiment",
    "shipped_experiments",
    "validated",
]
