"""The eICU federation: the largest silos train, the others are the test; synthetic patients; the network."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import nn

from fedilc.data.silo import Federation, Silo, held_out_rows
from fedilc.errors import ConfigError, DataError
from fedilc.models.networks import mlp
from fedilc.paper.eicu_tables import prepare
from fedilc.seeds import numpy_generator

HOSPITALS, PATIENTS, MEDICINES, DEATHS = 58, 30_760, 1_399, 9_382
_CASES, _INFORMATIVE, _SMALLEST = 8, 60, 60
_ORDERS_PER_PATIENT = 18.0
_SEED = 2022
Array = NDArray[np.float64]


def eicu_federation(
    table: PatientTable,
    seed: int = 0,
    name: str = "eicu",
    silos: int = 20,
    equal_sizes: bool = True,
    oversample: bool = True,
    validation_share: float = 0.3,
    subset: float = 1.0,
) -> Federation:
    """Return a federation whose largest silos train; all patients of the others are the test.

    Args:
        table: the patients.
        seed: the seed of every random choice below.
        name: the federation's name.
        silos: how many silos train.
        equal_sizes: cut each to the size of the smallest of them, as the paper's authors did.
        oversample: repeat training examples of the rarer outcome, drawn with replacement, until both
            outcomes are equally frequent; a silo with one outcome stays unchanged.
        validation_share: the share of each silo's patients for validation, with the same share of deaths.
        subset: the share of each training silo that is used.
    """
    names, sizes = np.unique(table.silo, return_counts=True)
    order = np.lexsort((names, -sizes))
    if not 1 <= silos < len(names):
        raise ConfigError(
            f"silos={silos} cannot train: the table has {len(names)}, and one must be left for the test"
        )
    chosen = order[:silos]
    members = []
    for index in chosen:
        random = numpy_generator(seed, name, str(names[index]), "split")
        rows = random.permutation(np.flatnonzero(table.silo == names[index]))
        rows = rows[: sizes[chosen].min() if equal_sizes else None]
        rows = np.sort(rows[: max(1, round(subset * len(rows)))])
        x, y = table.x[rows].astype(np.float32), table.died[rows].astype(np.float32)
        held_out = held_out_rows(y, validation_share, random)
        train = np.flatnonzero(~held_out)
        train = _balanced(train, y, random) if oversample else train
        members.append(Silo(str(names[index]), x[train], y[train], x[held_out], y[held_out]))
    outside = ~np.isin(table.silo, names[chosen])
    x_test, y_test = table.x[outside].astype(np.float32), table.died[outside].astype(np.float32)
    return Federation(name, members, x_test, y_test, loss="binary")


def _balanced(
    rows: NDArray[np.intp], y: NDArray[np.float32], random: np.random.Generator
) -> NDArray[np.intp]:
    """Return rows, followed by repeated ones of the rarer outcome."""
    rarer, other = sorted((rows[y[rows] == label] for label in (0, 1)), key=len)
    repeats = random.choice(rarer, len(other) - len(rarer)) if len(rarer) else rarer
    return np.concatenate([rows, repeats])


@dataclass(frozen=True)
class PatientTable:
    """One row per patient: the silo, whether the patient died, and 0/1 per medicine."""

    silo: NDArray[np.str_]
    died: NDArray[np.uint8]
    x: NDArray[np.uint8]


def read_patients(path: Path) -> PatientTable:
    """Return the table that `fedilc data eicu` wrote."""
    try:
        frame = pl.read_parquet(path, glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} cannot be read: {reason}; make it with `fedilc data eicu`") from error
    medicines = frame.drop("silo", "died", strict=False)
    right = {"silo", "died"} <= set(frame.columns) and frame["silo"].dtype == pl.String
    numbers = frame.drop("silo", strict=False)
    if not right or not medicines.width or any(dtype != pl.UInt8 for dtype in numbers.dtypes):
        raise DataError(
            f"{path} is not a table of patients: it needs the columns silo (text), died and one per medicine "
            "(0/1, unsigned bytes); make it with `fedilc data eicu`"
        )
    if not len(frame) or any(frame.null_count().row(0)) or max(numbers.max().row(0)) > 1:
        raise DataError(
            f"{path} is empty or holds other values than 0 and 1; make it with `fedilc data eicu`"
        )
    return PatientTable(
        frame["silo"].to_numpy().astype(np.str_), frame["died"].to_numpy(), medicines.to_numpy()
    )


def read_demo(folder: Path) -> PatientTable:
    """Return the patients of eICU's open demo, prepared from its raw tables.

    Regions are silos, because the demo has about ten patients per hospital; medicines with fewer than five
    patients are left out.
    """
    if not folder.is_dir():
        raise DataError(
            f"eICU's demo is not in {folder}; get it with `fedilc data fetch eicu-demo`, or put its tables "
            "patient, medication and hospital there"
        )
    with tempfile.TemporaryDirectory(prefix="fedilc-") as work:
        table = Path(work) / "eicu-demo.parquet"
        prepare(folder, table, silo_by="region", min_uses=5)
        return read_patients(table)


@dataclass(frozen=True)
class SyntheticPatients(PatientTable):
    """The patients, and which medicines follow the severity (invariant) or the outcome (misleading)."""

    invariant: NDArray[np.int64]
    misleading: NDArray[np.int64]


@dataclass(frozen=True)
class _Medicines:
    """The parts of the log-odds that a medicine is ordered; see `synthetic_patients`."""

    base: Array
    case: Array
    invariant: Array
    misleading: Array
    list_share: Array


def synthetic_patients() -> SyntheticPatients:
    """Return 30,760 patients of 58 hospitals, with 1,399 medicines; 30.5 % of the patients died.

    A patient has a case, one of eight whose proportions differ by hospital, and a severity s. Death is more
    likely with higher severity, and in some cases. Hospital h orders medicine j with log-odds

        base_j + case_jc + invariant_j s + misleading_j style_h (2 died - 1) + habit_hj

    - base: a few medicines are common and most are rare, in proportion to 1 / rank.
    - invariant: 60 of the more common medicines follow the severity, in the same way in every hospital.
    - misleading: 60 others follow the outcome, multiplied by the hospital's style, which falls from 1 in the
      largest hospital to -1 in the smallest, with noise: they predict death in most of the training data,
      and less so, or the opposite, in the hospitals of the test.
    - habit: each hospital has its own preferences, and never orders some, mostly rare, medicines.
    """
    sizes = _sizes()
    hospital = np.repeat(np.arange(HOSPITALS), sizes)
    case, severity, died = _patients(hospital)
    medicines = _medicines()
    x = np.empty((PATIENTS, MEDICINES), dtype=np.uint8)
    for number, start in enumerate(np.cumsum(sizes) - sizes):
        own = slice(start, start + sizes[number])
        x[own] = _orders(number, case[own], severity[own], died[own], medicines)
    return SyntheticPatients(
        np.array([f"synthetic-{number + 1:02d}" for number in range(HOSPITALS)])[hospital],
        died.astype(np.uint8),
        x,
        np.flatnonzero(medicines.invariant),
        np.flatnonzero(medicines.misleading),
    )


def _sizes() -> NDArray[np.int64]:
    """Return the patients per hospital, largest first: heavy-tailed, at least 60 each, the paper's total."""
    random = numpy_generator(_SEED, "eicu-synthetic", "sizes")
    weights = np.sort(random.lognormal(sigma=0.9, size=HOSPITALS))[::-1]
    spread = (PATIENTS - _SMALLEST * HOSPITALS) * weights / weights.sum()
    sizes: NDArray[np.int64] = _SMALLEST + np.floor(spread).astype(np.int64)
    sizes[0] += PATIENTS - sizes.sum()
    return sizes


def _patients(hospital: NDArray[np.int64]) -> tuple[NDArray[np.int64], Array, NDArray[np.bool_]]:
    """Return each patient's case, severity and outcome; the 9,382 with the highest risk plus noise die."""
    random = numpy_generator(_SEED, "eicu-synthetic", "patients")
    mix = np.cumsum(random.dirichlet(np.full(_CASES, 1.5), HOSPITALS), axis=1)
    case = (random.random(PATIENTS)[:, None] > mix[hospital, :-1]).sum(axis=1)
    severity = random.normal(size=PATIENTS) + random.normal(scale=0.3, size=HOSPITALS)[hospital]
    risk = 1.6 * severity + random.normal(scale=0.5, size=_CASES)[case] + random.logistic(size=PATIENTS)
    died = np.zeros(PATIENTS, dtype=np.bool_)
    died[np.argsort(-risk, kind="stable")[:DEATHS]] = True
    return case, severity, died


def _medicines() -> _Medicines:
    """Return every medicine's log-odds, from the most common to the rarest."""
    random = numpy_generator(_SEED, "eicu-synthetic", "medicines")
    share = 1 / (np.arange(MEDICINES) + 12.0)
    share *= _ORDERS_PER_PATIENT / share.sum()
    informative = random.permutation(np.arange(20, 420))[: 2 * _INFORMATIVE]
    invariant, misleading = np.zeros(MEDICINES), np.zeros(MEDICINES)
    signs = random.choice([-1.0, 1.0], _INFORMATIVE, p=[0.3, 0.7])
    invariant[informative[:_INFORMATIVE]] = signs * random.uniform(0.4, 0.9, _INFORMATIVE)
    misleading[informative[_INFORMATIVE:]] = random.uniform(0.4, 0.9, _INFORMATIVE)
    return _Medicines(
        base=np.log(share / (1 - share)),
        case=random.normal(scale=0.8, size=(_CASES, MEDICINES)) * (random.random((_CASES, MEDICINES)) < 0.3),
        invariant=invariant,
        misleading=misleading,
        list_share=0.6 + 0.4 * np.minimum(1, share / share[100]),
    )


def _orders(
    number: int, case: NDArray[np.int64], severity: Array, died: NDArray[np.bool_], medicines: _Medicines
) -> NDArray[np.bool_]:
    """Return the orders of one hospital for its patients."""
    random = numpy_generator(_SEED, "eicu-synthetic", "hospital", number)
    style = 1 - 2 * number / (HOSPITALS - 1) + random.normal(scale=0.4)
    habit = random.normal(scale=0.7, size=MEDICINES)
    listed = random.random(MEDICINES) < medicines.list_share
    odds = medicines.case[case] + (medicines.base + habit)
    odds += np.outer(severity, medicines.invariant)
    odds += np.outer(style * np.where(died, 1.0, -1.0), medicines.misleading)
    # A logistic variable is below the log-odds with the probability that belongs to these.
    return (random.logistic(size=odds.shape) < odds) & listed


def eicu_mlp(
    inputs: Sequence[int], outputs: int, generator: torch.Generator, hidden: Sequence[int] = (1024, 1024, 512)
) -> nn.Sequential:
    """Return the eICU network: as `mlp`, without ReLU between the last hidden layer and the classifier."""
    network = mlp(inputs, outputs, generator, hidden)
    if not hidden:
        return network
    *layers, _relu, classifier = network
    return nn.Sequential(*layers, classifier)
