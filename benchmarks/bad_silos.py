"""Bad silos: how long honest answers are, who is noticed, and what algorithms lose to one and two of them.

    python -m benchmarks.bad_silos --out results/bad-silos [--quick]

trains on data sets of unlike honest silos, and measures the longest answer of a silo as a multiple of what is
usual (`federation/outliers.py`), which says how low `outlier_factor` may be. The same runs with a silo that
sends its update times -10, or with the opposite sign, say whether it is set aside or noticed. Then it trains
algorithms on `color-digits` with honest silos, and with one and two silos that send the opposite sign. Needs
MNIST in the folder that FEDILC_DATA names; about 20 minutes on one core. Writes runs.csv and table.md; runs
that are in runs.csv are not repeated.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from fedilc import Federation, Silo
from fedilc.config import Options, read_experiment
from fedilc.data.silo_store import SiloStore
from fedilc.errors import FedILCError, FedILCWarning
from fedilc.evaluation import measure
from fedilc.federation import Reply, Request
from fedilc.federation.outliers import NormBound, Norms
from fedilc.models import build_model
from fedilc.runtimes.local import LocalRuntime
from fedilc.training.callbacks import as_callback
from fedilc.training.loop import Specification, Training

TWENTY = "twenty small sites"
FACTOR = 8.0  # the default is 100
HEART = ("va", "switzerland")
LOCAL = ("fedavg", "scaffold")
SEPARATED = ("fedsgd", "fedavg", "fishr-inter-geo", "scaffold")
COMPARED = ("fedsgd", "geometric", "fishr-inter-geo", "fedavg", "trimmed-mean", "median")
ONE, TWO = ((0,), (2,), (4,)), ((0, 1), (1, 3), (3, 4))
KEYS = ("part", "data", "algorithm", "bad", "times")
Row = Mapping[str, Any]


class Watched(NormBound):
    """A bound that also remembers the longest answer so far, as a multiple of what is usual."""

    longest = 0.0

    def outliers(self, kind: str, norms: Norms, cancels: bool = False) -> dict[str, str]:
        """Measure the round, and return its outliers."""
        multiple = max(norms.values()) / (self.usual(kind, norms) or float("inf"))
        self.longest = max(self.longest, multiple / (len(norms) if cancels else 1))
        return super().outliers(kind, norms, cancels)


class BadSilos(LocalRuntime):
    """Silos of which some send their update times a number; as over a network, outliers are set aside."""

    sets_aside = True
    bad: tuple[str, ...] = ()
    times = 1.0

    def ask(self, request: Request) -> Iterator[Reply]:
        """Yield the replies; those of bad silos are changed."""
        for reply in super().ask(request):
            if reply.silo in self.bad:
                for kind in reply.tensors.keys() & {"gradient", "update"}:
                    for tensor in reply.tensors[kind].values():
                        tensor.mul_(self.times)
            yield reply


@dataclass
class Data:
    """A federation by name, and the options of its runs."""

    name: str
    store: SiloStore
    options: dict[str, Any]
    model: Any


def experiment(name: str, algorithm: str, *changes: str, without: str = "") -> Data:
    """Return an experiment of the package, changed; `without` is the hospital that is its test site."""
    asked = [f"algorithm={algorithm}", *changes, *([f"data.test={without}"] if without else [])]
    settings, home = read_experiment(name, asked)
    store = settings.data.store(settings.seed, home)
    called = f"{name} without {without}" if without else name
    return Data(called, store, settings.options(), lambda: settings.model.build(store, settings.seed))


def twenty_small_sites(algorithm: str, rounds: int) -> Data:
    """Return twenty sites of 20 to 80 examples, each with its own shift, coefficients and share of events.

    Inputs are standardised over all sites, as `source = "tables"` does.
    """
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(10, generator=generator)
    drawn = []
    for _ in range(20):
        size = int(torch.randint(20, 80, (1,), generator=generator))
        x = torch.randn(size, 10, generator=generator) + 0.5 * torch.randn(10, generator=generator)
        own = common + 0.7 * torch.randn(10, generator=generator)
        chance = torch.sigmoid(x @ own + torch.randn(1, generator=generator))
        drawn.append((x, (torch.rand(size, generator=generator) < chance).long()))
    pooled = torch.cat([x for x, _ in drawn])
    silos = []
    for number, (x, y) in enumerate(drawn):
        scaled, part = (x - pooled.mean(0)) / pooled.std(0), len(x) * 2 // 3
        silos.append(Silo(f"site-{number + 1}", scaled[:part], y[:part], scaled[part:], y[part:]))
    options: dict[str, Any] = {"rounds": rounds, "learning_rate": 0.01}
    if algorithm in LOCAL:
        options |= {"learning_rate": 1.0, "local_learning_rate": 0.05}
    store = SiloStore.of(Federation(TWENTY, silos))
    return Data(TWENTY, store, options, lambda: build_model("mlp", (10,), 1, seed=0, hidden=[32]))


def run(part: str, data: Data, algorithm: str, bad: tuple[str, ...], times: float) -> Row:
    """Train once and return the row of the table."""
    started = time.perf_counter()
    options = data.options | {"evaluate_every": data.options["rounds"], "min_silos": 1}
    model = data.model()
    spec = Specification.of(data.store.outline(), model, algorithm, Options(**options))
    runtime = BadSilos(data.store, spec.runner, spec.program, partial(measure, spec.runner.loss))
    runtime.bad, runtime.times = bad, times
    bound, history, ended = Watched(FACTOR), list[dict[str, Any]](), ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedILCWarning)
        try:
            training = Training(spec, runtime)
            training.server.selection = replace(training.server.selection, bound=bound)
            training.run([as_callback(history.append)], None, False, {})
        except FedILCError as error:
            ended = str(error)
    aside, against = (_named(history, key) for key in ("set_aside", "against"))
    last = history[-1] if history and not ended else {}
    honest = [
        float(numbers["validation_accuracy"])
        for silo, numbers in last.get("silos", {}).items()
        if silo not in bad and numbers.get("validation_accuracy") is not None
    ]
    return {
        "part": part,
        "data": data.name,
        "algorithm": algorithm,
        "bad": " ".join(bad),
        "times": str(times),
        "longest": round(bound.longest, 2),
        "set aside": len(aside & set(bad)),
        "set aside honest": len(aside - set(bad)),
        "noticed": len(against & set(bad)),
        "noticed honest": len(against - set(bad)),
        "unseen site": last.get("test_accuracy"),
        "honest silos": round(fmean(honest), 4) if honest else None,
        "ended": ended,
        "seconds": round(time.perf_counter() - started, 1),
    }


def _named(history: Sequence[Mapping[str, Any]], key: str) -> set[str]:
    return {silo for record in history for silo in record.get(key, {})}


def separation(quick: bool) -> Iterator[tuple[str, Data, str, tuple[int, ...], float]]:
    """Yield runs of honest silos, and of the same silos with one that sends its update times -1 and -10."""
    rounds = 20 if quick else 50
    for algorithm in SEPARATED:
        sets = [
            twenty_small_sites(algorithm, rounds),
            *(experiment("heart-disease", algorithm, f"rounds={rounds}", without=site) for site in HEART),
            experiment("color-digits", algorithm, f"rounds={2 * rounds}"),
            experiment("color-mnist", algorithm, "data.subset=0.05", f"rounds={rounds // 2}"),
        ]
        for data in sets[: 2 if quick else None]:
            for bad, times in (((), 1.0), ((1,), -1.0), ((1,), -10.0)):
                yield "separation", data, algorithm, bad, times


def losses(quick: bool) -> Iterator[tuple[str, Data, str, tuple[int, ...], float]]:
    """Yield runs of `color-digits` with no, one and two bad silos, for each algorithm."""
    for algorithm in COMPARED[: 2 if quick else None]:
        data = experiment("color-digits", algorithm, f"rounds={20 if quick else 100}")
        for bad, times in (((), 1.0), *((bad, -1.0) for bad in (*ONE, *TWO)), *((bad, -10.0) for bad in ONE)):
            yield "losses", data, algorithm, bad, times


def tables(rows: Sequence[Row]) -> str:
    """Return the two tables as Markdown."""
    found = [
        "| data | algorithm | longest honest answer | honest: set aside, noticed | opposite sign: noticed, "
        "and honest ones | times -10: set aside, and honest ones |",
        "|---|---|---:|---:|---:|---:|",
    ]
    own = [row for row in rows if row["part"] == "separation"]
    for data, algorithm in dict.fromkeys((row["data"], row["algorithm"]) for row in own):
        group = {row["times"]: row for row in own if (row["data"], row["algorithm"]) == (data, algorithm)}
        if group.keys() == {"1.0", "-1.0", "-10.0"}:
            honest, flipped, long = (group[times] for times in ("1.0", "-1.0", "-10.0"))
            cells = [data, f"`{algorithm}`", f"{float(honest['longest']):.1f}"]
            cells += [f"{honest['set aside honest']}, {honest['noticed honest']}"]
            cells += [f"{flipped['noticed']}, {flipped['noticed honest']}"]
            cells += [f"{long['set aside']}, {long['set aside honest']}"]
            found.append(f"| {' | '.join(cells)} |")
    found += [
        "",
        "| algorithm | honest | one with the opposite sign | two | one times -10 | noticed of one, of two |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    own = [row for row in rows if row["part"] == "losses"]
    for algorithm in dict.fromkeys(row["algorithm"] for row in own):
        group = [row for row in own if row["algorithm"] == algorithm]
        kinds = [(0, "1.0"), (1, "-1.0"), (2, "-1.0"), (1, "-10.0")]
        parts = [[row for row in group if (_size(row), row["times"]) == kind] for kind in kinds]
        shares = [
            f"{sum(int(row['noticed']) for row in part)} of {sum(map(_size, part))}" for part in parts[1:3]
        ]
        cells = [f"`{algorithm}`", *map(_accuracies, parts), ", ".join(shares)]
        found.append(f"| {' | '.join(cells)} |")
    return "\n".join(found) + "\n"


def _size(row: Row) -> int:
    return len(row["bad"].split())


def _accuracies(rows: Sequence[Row]) -> str:
    """Return the mean accuracies at the honest silos and, in brackets, at the unseen site."""
    done = [row for row in rows if not row["ended"]]
    if not done:
        return "no model"
    there, unseen = (fmean(float(row[key]) for row in done) for key in ("honest silos", "unseen site"))
    failed = f", {len(rows) - len(done)} of {len(rows)} ended" if len(done) < len(rows) else ""
    return f"{there:.2f} ({unseen:.2f}){failed}"


def main() -> None:
    """Train what has not been trained, and write the rows and the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bad_silos", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="a few short runs")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "runs.csv"
    rows: list[Row] = list(csv.DictReader(path.open())) if path.exists() else []
    done = {tuple(row[key] for key in KEYS) for row in rows}
    for part, data, algorithm, places, times in chain(losses(arguments.quick), separation(arguments.quick)):
        bad = tuple(data.store.silos[place] for place in places)
        if (part, data.name, algorithm, " ".join(bad), str(times)) not in done:
            rows.append(run(part, data, algorithm, bad, times))
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
    text = tables(rows)
    (arguments.out / "table.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
