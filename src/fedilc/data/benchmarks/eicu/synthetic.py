"""Synthetic patients in the shape of the paper's eICU table, for users without access to the database.

Nothing here is real, and nothing is fitted to eICU except the paper's counts and its share of deaths.
The patients are the same in every run; a run's seed draws only the splits, as for real data.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedilc.data.benchmarks.eicu.silos import PatientTable
from fedilc.seeds import numpy_generator

HOSPITALS, PATIENTS, MEDICINES, DEATHS = 58, 30_760, 1_399, 9_382

_CASES, _INFORMATIVE, _SMALLEST = 8, 60, 60
_ORDERS_PER_PATIENT = 18.0
_SEED = 2022

Array = NDArray[np.float64]


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
