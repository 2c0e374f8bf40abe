"""How often notes on leaks and sites are wrong on tables without them, and how often they find planted ones.

    python -m benchmarks.false_alarms      # 100 random tables, heart disease, and eICU's demo if it is there

Random tables have 3 to 12 sites of 20 to 300 rows, 5 to 30 columns (numbers, counts, codes, names, missing
cells; some predict the label with an AUROC up to about 0.9, some differ between sites), 5 % to 50 % events.
"""

from __future__ import annotations

import argparse

import numpy as np
import polars as pl

from fedilc.data.checks.notes import details
from fedilc.data.download import data_folder
from fedilc.data.embedded_data import heart_disease
from fedilc.data.tables.silo_tables import SiloTables, tables_of
from fedilc.data.tables.table_settings import TableSettings

KINDS = {
    "leak": "alone predicts the label",
    "copied site": "is a copy of",
    "column of the site": "has one value in all rows of a silo",
    "unit": "like another unit",
    "shared patients": "are also in",
}
AFTER_THE_OUTCOME = ("unitdischargestatus", "unitdischargelocation", "hospitaldischargelocation")
Frames = dict[str, pl.DataFrame]


def random_tables(random: np.random.Generator) -> Frames:
    """Return the tables of a few sites, none of which leaks."""
    width, share = int(random.integers(5, 31)), random.uniform(0.05, 0.5)
    kinds = random.choice(["number", "skewed", "count", "code", "name"], width)
    strength, gaps = random.exponential(0.4, width).clip(0, 1.8), random.choice([0, 0, 0.1, 0.5], width)
    shift, names = random.choice([0, 0, 0.3, 1.0], width), random.integers(2, 40, width)
    frames = {}
    for site in range(int(random.integers(3, 13))):
        rows = int(random.integers(20, 301))
        died = random.random(rows) < share
        died[:6] = [True, False] * 3
        columns: dict[str, list[object]] = {"died": died.astype(int).tolist()}
        for place, kind in enumerate(kinds):
            x = random.normal(shift[place] * random.normal(), 1, rows) + strength[place] * died
            values: list[object] = list(
                {
                    "number": np.round(50 + 10 * x, 1),
                    "skewed": np.round(np.exp(0.8 * x), 2),
                    "count": np.floor(np.exp(0.7 * x)),
                    "code": np.digitize(x, [-1, 0, 1, 2]),
                    "name": np.floor(names[place] * (x % 1)).astype(int).astype(str),
                }[kind]
            )
            gone = random.random(rows) < gaps[place] * random.uniform(0.5, 1.5)
            prefix = "n" if kind == "name" else ""
            columns[f"{kind}{place}"] = [
                None if lost else f"{prefix}{value}" if prefix else float(str(value))
                for value, lost in zip(values, gone, strict=True)
            ]
        frames[f"site {site}"] = pl.DataFrame(columns, strict=False)
    return frames


def planted(frames: Frames, random: np.random.Generator) -> Frames:
    """Return the same tables with one mistake of each kind; a leak is constant or wrong in a few cells."""
    names, found = list(frames), {}
    for place, (name, frame) in enumerate(frames.items()):
        died = frame["died"].to_numpy() == 1
        wrong = died ^ (random.random(len(died)) < 0.005)
        unit = 88.4 if place == 1 else 1.0
        found[name] = frame.with_columns(
            pl.Series(
                "value leak", np.zeros(len(died)) if place == 0 else wrong + random.random(len(died)) / 2
            ),
            pl.Series("presence leak", [float(random.integers(5)) if one else None for one in wrong]),
            pl.Series("name leak", np.where(wrong, random.choice(["icu", "hospice"], len(died)), "home")),
            pl.Series("creatinine", np.round(unit * np.exp(random.normal(0, 0.4, len(died))), 2)),
            pl.lit(f"code {place}").alias("site code"),
            *(pl.Series(f"lab {k}", random.normal(100, 15, len(died)).round(1)) for k in range(4)),
        )
    found["copy"] = found[names[0]].sample(fraction=1, shuffle=True, seed=0)
    moved = found[names[0]].head(15).with_columns(pl.col("lab 0") + 1, pl.lit("code 2").alias("site code"))
    found[names[2]] = pl.concat(
        [found[names[2]], moved.select(found[names[2]].columns)], how="vertical_relaxed"
    )
    return found


def noted(tables: SiloTables) -> dict[str, list[str]]:
    """Return the notes of each kind."""
    every = details(tables.findings)
    return {kind: [note for note in every if text in note] for kind, text in KINDS.items()}


def eicu_demo() -> pl.DataFrame | None:
    """Return the demo's stays with regions as sites and the outcome in hospital; None if it is not there."""
    folder = data_folder() / "eicu-demo"
    if not (folder / "patient.csv.gz").exists():
        return None
    patients, hospitals = (pl.read_csv(folder / f"{name}.csv.gz") for name in ("patient", "hospital"))
    joined = patients.join(hospitals.select("hospitalid", "region"), on="hospitalid")
    return joined.drop_nulls("region").filter(pl.col("hospitaldischargestatus").is_in(["Alive", "Expired"]))


def main() -> None:
    """Print how often each kind of note is right and wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tables", type=int, default=100, help="random tables (default: 100)")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first table (default: 0)")
    given = parser.parse_args()
    count = given.tables
    wrong, right = dict.fromkeys(KINDS, 0), dict.fromkeys(KINDS, 0)
    columns = 0
    for seed in range(given.first, given.first + count):
        random = np.random.default_rng(seed)
        frames = random_tables(random)
        columns += next(iter(frames.values())).width - 1
        for kind, notes in noted(tables_of(frames, TableSettings(label="died"))).items():
            wrong[kind] += len(notes)
        for kind, notes in noted(tables_of(planted(frames, random), TableSettings(label="died"))).items():
            expected = [note for note in notes if kind != "leak" or " leak'" in note]
            right[kind] += min(len(expected), 3) if kind == "leak" else bool(expected)
    print(f"{count} random tables with {columns} columns: false notes, and planted mistakes found")
    for kind in KINDS:
        print(f"  {kind}: {wrong[kind]} false, {right[kind]} of {count * (3 if kind == 'leak' else 1)} found")
    heart = noted(heart_disease(data_folder() / "heart-disease"))
    print(f"heart disease, 4 hospitals: {sum(map(len, heart.values()))} notes of these kinds")
    demo = eicu_demo()
    if demo is not None:
        settings = TableSettings(label="hospitaldischargestatus", positive="Expired")
        parts = {
            str(name[0]): part.drop("region")
            for name, part in demo.partition_by("region", as_dict=True).items()
        }
        for dropped in ((), AFTER_THE_OUTCOME):
            found = noted(tables_of(parts, settings.model_copy(update={"drop": dropped})))
            left = ", ".join(dropped) or "nothing"
            print(f"eICU demo, {len(parts)} regions, {len(demo)} stays, without {left}:")
            said = [f"  {note}" for notes in found.values() for note in notes]
            print("\n".join(said) or "  no note of these kinds")


if __name__ == "__main__":
    main()
