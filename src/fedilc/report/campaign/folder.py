"""Write the folder of a campaign: its tables, pictures and numbers."""

from __future__ import annotations

import json
from pathlib import Path

from fedilc.evaluation.stored import (
    FACTS,
    HISTORIES,
    SCORES,
    SUMMARY,
    ScoresByCurvature,
    campaign_json,
    history_csv,
    read_campaign,
    scores_csv,
    with_scores,
)
from fedilc.evaluation.summary import Campaign, summarise
from fedilc.federation.tensor_files import write_atomically
from fedilc.report.campaign.plots import campaign_pictures, inconsistency_picture
from fedilc.report.campaign.tables import campaign_tables
from fedilc.report.table_formats import TableData, write_tables


def write_campaign(folder: Path, campaign: Campaign, scores: ScoresByCurvature) -> list[TableData]:
    """Write tables, pictures, and the numbers that they are made from into a folder; return the tables."""
    scored = with_scores(campaign, scores)
    tables = _draw(folder, scored, scores)
    write_atomically(folder / FACTS, campaign_json(campaign).encode())
    write_atomically(folder / SUMMARY, (json.dumps(summarise(scored), indent=1) + "\n").encode())
    write_atomically(folder / HISTORIES, history_csv(campaign).encode())
    if scores:
        write_atomically(folder / SCORES, scores_csv(scores).encode())
    return tables


def remake_campaign(folder: Path) -> list[TableData]:
    """Make tables and pictures again from a campaign's numbers, without its runs; return the tables.

    The numbers stay the same, except that `summary.json` gets the inconsistency scores of
    `inconsistency-scores.csv`.
    """
    campaign, scores = read_campaign(folder)
    tables = _draw(folder, campaign, scores)
    write_atomically(folder / SUMMARY, (json.dumps(summarise(campaign), indent=1) + "\n").encode())
    return tables


def _draw(folder: Path, campaign: Campaign, scores: ScoresByCurvature) -> list[TableData]:
    tables = campaign_tables(campaign)
    for algorithm, found in scores.get("variance", {}).items():
        path = folder / "figures" / f"inconsistency-{algorithm}.png"
        title = f"{campaign.heading} · {algorithm}"
        fewer = len(found.by_seed) < len(campaign.histories[algorithm])
        note = campaign.subtitle + (f"; scores of {len(found.by_seed)} seeds only" if fewer else "")
        inconsistency_picture(path, title, found.silos, found.matrix(), note=note)
    write_tables(folder, tables)
    campaign_pictures(folder / "figures", campaign)
    return tables
