"""Register the paper's data, networks, experiments and campaigns; loaded as every plug-in is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedilc.config import register_experiments, register_source
from fedilc.data.download import DATA_SETS
from fedilc.models import registry
from fedilc.paper.data_sets import DATA_SETS as PAPERS
from fedilc.paper.sources import ColorMnist, Eicu, EicuDemo, EicuSynthetic, RotatedCifar10
from fedilc.report import register_folder

if TYPE_CHECKING:
    from fedilc.report.tables import TableData

for _name, _source in (
    ("color-mnist", ColorMnist),
    ("rotated-cifar10", RotatedCifar10),
    ("eicu", Eicu),
    ("eicu-demo", EicuDemo),
    ("eicu-synthetic", EicuSynthetic),
):
    register_source(_name, _source)
for _name, _data in PAPERS.items():
    DATA_SETS.register(_name, _data)
register_experiments(Path(__file__).with_name("experiments"))
registry.register(
    "eicu-mlp",
    "fedilc.paper.eicu:eicu_mlp",
    "1024-1024-512-1 for eICU; set hidden = [..] for other widths",
)


def _remake(folder: Path) -> tuple[Sequence[TableData], str]:
    """Write the tables and pictures of a campaign again from its numbers."""
    from fedilc.paper.folder import remake_campaign

    return remake_campaign(folder), "tables.md, tables.tex, tables/*.csv, figures/*.png"


register_folder("campaign.json", _remake)
