"""When the paper's method helps: maps of what each part gains over logistic regression at a new site.

Two families of synthetic sites share 8 columns that predict the label weakly, at the new site too:

    own      each site has columns of its own that predict the label strongly there and are noise elsewhere;
             as `codes`, they are 0 or 1, and 0 at all other training sites
    shared   six columns show a colour, which equals the label with a probability that differs from site to
             site (.95 to .65) and is .10 at the new site

Nothing is chosen at the new site: learning rate, round, ridge, and the penalty weight of "lambda chosen" are
those of lowest mean log loss at two further sites of the same family, which no model trains on. Gains are
differences of the new site's AUROC from logistic regression of the pooled data, which is also what the
federated one finds; intervals are 95 % t-intervals over seeds, paired by seed. All seeds of a cell are
trained at once, with the package's aggregations and optimisers; `tests/docs/test_shortcut_maps.py` compares
the weights with those of `train`. A cell that is in the file of cells is not trained again.

    python -m benchmarks.shortcut_maps --out results/shortcut-maps --picture docs/images/shortcut-maps.png
    python -m benchmarks.shortcut_maps --table sites.csv      # ten sites for `fedilc study`
"""

from __future__ import annotations

import argparse
import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import t as student
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.nn import functional

from fedilc import Federation, Silo
from fedilc.algorithms.parts import AGGREGATORS
from fedilc.data.embedded_data import site_shortcuts
from fedilc.evaluation.metrics import areas
from fedilc.models import build_model
from fedilc.optimizers.optimizers import make_optimizer
from fedilc.report.plots import COLOURS, STYLE, save
from fedilc.seeds import numpy_generator
from fedilc.storage.files import write_atomically

LOGISTIC = "logistic regression"
CHOSEN = "lambda chosen"
FEATURES, MARKERS, COLOURED, CHOOSING, TEST = 8, 4, 6, 2, 2000
ROUNDS, EVERY = 60, 5
RIDGES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
RATES = {
    "adam": (0.01, 0.03),
    "layeradam": (0.01, 0.03),
    "sgd": (0.1, 1.0),
    "momentum": (0.03, 0.3),
    "sign": (0.003, 0.01),
}
LAMBDAS = (1.0, 30.0, 1000.0)
COLUMNS = ("family", "sites", "rows", "strength", "hidden", "codes", "method", "seed", "loss", "auroc")
Data = tuple[Tensor, Tensor]
Row = Mapping[str, str]


@dataclass(frozen=True)
class Method:
    """What is trained: an aggregation with its options, the server's optimiser, and the Fishr penalty."""

    name: str
    inter: str = "mean"
    server: str = "adam"
    options: Mapping[str, Any] = field(default_factory=dict)
    penalty_weight: float = 0.0
    change: str = ""  # of the aggregate: "norm" gives it the length of the mean, "sign" takes its signs


FEDSGD = Method("fedsgd, Adam")
GEOMETRIC = Method("geometric, Adam", "geometric")
LAYER = Method("geometric, layeradam", "geometric", "layeradam")
AGREED = Method("agreed-geometric", "geometric", "layeradam", {"agreement": 0.5})
BOTH = (
    *(FEDSGD, Method("fedsgd, layeradam", server="layeradam"), GEOMETRIC),
    *(Method("geometric, SGD", "geometric", "sgd"), LAYER),
    *(Method("geometric, agreement 0.5, Adam", "geometric", "adam", {"agreement": 0.5}), AGREED),
    Method("absolute-geometric, layeradam", "absolute-geometric", "layeradam"),
)
PENALISED = tuple(
    Method(f"{name}, lambda {value:g}", inter, "adam", {}, value)
    for name, inter in (("fedcurv", "mean"), ("fishr-inter-geo", "geometric"))
    for value in LAMBDAS
)
ZEROS = tuple(
    Method(f"geometric, layeradam, zeros {zeros}", "geometric", "layeradam", {"zeros": zeros})
    for zeros in ("strict", "authors")
)
AGREEMENTS = tuple(
    Method(f"geometric, agreement {least:g}, layeradam", "geometric", "layeradam", {"agreement": least})
    for least in (0.25, 0.75, 1.0)
)
OTHER_SERVERS = (
    Method("geometric, SGD with momentum 0.9", "geometric", "momentum"),
    Method("geometric with the norm of the mean, SGD", "geometric", "sgd", change="norm"),
    Method("signs of geometric, SGD", "geometric", "sign", change="sign"),
)


@dataclass(frozen=True)
class Cell:
    """One point of a map: how the sites are made, and how wide the hidden layer is (0: linear)."""

    family: str
    sites: int = 10
    rows: int = 150
    strength: float = 1.5
    hidden: int = 0
    codes: bool = False

    @property
    def methods(self) -> tuple[Method, ...]:
        """Return what is trained in it."""
        penalised = PENALISED if self.family == "shared" or self == OWN else ()
        others = OTHER_SERVERS if replace(self, hidden=0) == OWN else ()
        agreements = AGREEMENTS if replace(self, hidden=0) in (OWN, SHARED) else ()
        return (*BOTH, *agreements, *others, *penalised, *(ZEROS if self.codes else ()))

    @property
    def key(self) -> tuple[str, ...]:
        """Return the cell as it is written in the file."""
        facts = (self.family, self.sites, self.rows, f"{self.strength:g}", self.hidden, int(self.codes))
        return tuple(map(str, facts))

    def federation(self, seed: int) -> tuple[Federation, list[Silo]]:
        """Return the training sites with the new site as the test, and the sites for choosing."""
        total = self.sites + CHOOSING
        make = _own if self.family == "own" else _shared
        whole = make(self, total, seed)
        test = (whole.x_test[:TEST], whole.y_test[:TEST])
        return Federation("map", whole.silos[: self.sites], *test, loss="binary"), whole.silos[self.sites :]


OWN, SHARED = Cell("own"), Cell("shared", strength=0.8)


@dataclass(frozen=True)
class Map:
    """Cells along an axis, which is a field of them."""

    title: str
    axis: str
    label: str
    cells: tuple[Cell, ...]

    @classmethod
    def along(cls, title: str, axis: str, label: str, base: Cell, values: Sequence[float]) -> Map:
        """Return the map of a base cell with these values of a field."""
        return cls(title, axis, label, tuple(replace(base, **{axis: value}) for value in values))


SIZE = ("sites", "training sites"), ("rows", "rows per site")
MAPS = (
    Map.along("own, linear", "strength", "strength of the shortcut", OWN, (0.0, 0.5, 1.0, 1.5, 3.0)),
    Map.along("own, linear", *SIZE[0], OWN, (3, 5, 10, 20)),
    Map.along("own, linear", *SIZE[1], OWN, (30, 75, 150, 600)),
    Map.along(
        "own, one hidden layer of 32", "strength", "strength", replace(OWN, hidden=32), (0.0, 0.5, 1.5, 3.0)
    ),
    Map.along("own, linear, codes", "strength", "strength", replace(OWN, codes=True), (0.5, 1.5)),
    Map.along("shared, linear", "strength", "strength of the shortcut", SHARED, (0.0, 0.4, 0.8, 1.6)),
    Map.along("shared, linear", *SIZE[0], SHARED, (3, 10, 20)),
    Map.along("shared, linear", *SIZE[1], SHARED, (30, 150, 600)),
    Map.along(
        "shared, one hidden layer of 32", "strength", "strength", replace(SHARED, hidden=32), (0.0, 0.8)
    ),
)


def _own(cell: Cell, total: int, seed: int) -> Federation:
    """Return sites with shortcuts of their own, by the package's own recipe; or with codes in their place."""
    made = site_shortcuts(seed, total, cell.rows, 1, FEATURES, 0.25, MARKERS, cell.strength)
    if not cell.codes:
        return made
    silos = []
    for place, silo in enumerate(made.silos):
        x = torch.cat([silo.x[:, :FEATURES], torch.zeros_like(silo.x[:, FEATURES:])], 1)
        first = FEATURES + place * MARKERS
        x[:, first : first + MARKERS] = (silo.x[:, first : first + MARKERS] > 0).float()
        silos.append(Silo(silo.name, x, silo.y))
    test = torch.cat([made.x_test[:, :FEATURES], (made.x_test[:, FEATURES:] > 0).float()], 1)
    return Federation(made.name, silos, test, made.y_test, loss="binary")


def _shared(cell: Cell, total: int, seed: int) -> Federation:
    """Return sites whose colour is right with unlike probabilities, dealt to them at random."""
    random = numpy_generator(seed, "shared-shortcut")
    right = random.permutation(np.linspace(0.95, 0.65, total))

    def site(rows: int, probability: float) -> Data:
        y = random.integers(0, 2, rows)
        colour = np.where(random.random(rows) < probability, y, 1 - y)
        x = random.normal(size=(rows, FEATURES + COLOURED))
        x[:, :FEATURES] += 0.25 * (2 * y - 1)[:, None]
        x[:, FEATURES:] += cell.strength * (2 * colour - 1)[:, None]
        return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.float32))

    silos = [Silo(f"site-{n}", *site(cell.rows, float(p))) for n, p in enumerate(right)]
    return Federation("shared-shortcut", silos, *site(TEST, 0.10), loss="binary")


@dataclass(frozen=True)
class Stack:
    """Every seed's sites as one tensor: (seeds, sites, rows, columns)."""

    train: Data
    choose: Data
    test: Data
    first: Mapping[str, Tensor]

    @classmethod
    def of(cls, cell: Cell, seeds: Sequence[int]) -> Stack:
        """Return the sites of a cell, with the first weights of each seed."""
        made = [cell.federation(seed) for seed in seeds]
        models = [network(cell, fed.inputs[0], seed) for (fed, _), seed in zip(made, seeds, strict=True)]
        weights = [dict(model.named_parameters()) for model in models]
        return cls(
            _stacked([[(silo.x, silo.y) for silo in fed.silos] for fed, _ in made]),
            _stacked([[(silo.x, silo.y) for silo in choosing] for _, choosing in made]),
            _stacked([[(fed.x_test, fed.y_test)] for fed, _ in made]),
            {name: torch.stack([one[name].detach() for one in weights]) for name in weights[0]},
        )


def network(cell: Cell, columns: int, seed: int) -> nn.Module:
    """Return the model of a cell with its first weights: 0 if it is linear."""
    if cell.hidden:
        return build_model("mlp", (columns,), 1, seed, hidden=(cell.hidden,))
    return build_model("linear", (columns,), 1, seed)


def _stacked(parts: Sequence[Sequence[tuple[Any, Any]]]) -> Data:
    xs = torch.stack([torch.stack([torch.as_tensor(x) for x, _ in row]) for row in parts])
    ys = torch.stack([torch.stack([torch.as_tensor(y).float() for _, y in row]) for row in parts])
    return xs, ys


def outputs(weights: Sequence[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the logits and the classifier's inputs, by (seed, site, row)."""
    for place in range(0, len(weights) - 2, 2):
        x = (x @ weights[place].mT + weights[place + 1].unsqueeze(-2)).relu()
    return (x @ weights[-2].mT + weights[-1].unsqueeze(-2)).squeeze(-1), x


def losses(logits: Tensor, y: Tensor) -> Tensor:
    """Return the mean log loss of each seed and site."""
    return functional.binary_cross_entropy_with_logits(logits, y, reduction="none").mean(-1)


def fishr(logits: Tensor, features: Tensor, y: Tensor) -> Tensor:
    """Return the Fishr loss of each seed: how far the variances of the classifier's gradients differ."""
    slopes = (logits.sigmoid() - y).unsqueeze(-1)
    gradients = torch.cat([slopes * features, slopes], -1)
    variances = gradients.var(-2, correction=0)
    return (variances - variances.mean(1, keepdim=True)).square().sum(-1).mean(1)


def trained(stack: Stack, method: Method, rate: float, rounds: int = ROUNDS) -> Iterator[list[Tensor]]:
    """Yield the weights after each round, by seed."""
    x, y = stack.train
    seeds, sites = y.shape[:2]
    own = [[nn.Parameter(tensor[k].clone()) for tensor in stack.first.values()] for k in range(seeds)]
    plain = method.server in ("momentum", "sign")
    options = {"momentum": 0.9} if method.server == "momentum" else {}
    parameters = [one for row in own for one in row]
    server = make_optimizer("sgd" if plain else method.server, parameters, rate, options=options)
    rule = AGGREGATORS.build(method.inter, **method.options)
    for _ in range(rounds):
        weights = [torch.stack(column).detach() for column in zip(*own, strict=True)]
        leaves = [w.unsqueeze(1).repeat_interleave(sites, 1).requires_grad_() for w in weights]
        logits, features = outputs(leaves, x)
        found = torch.autograd.grad(losses(logits, y).sum(), leaves, retain_graph=method.penalty_weight > 0)
        state = rule.zero(dict(zip(stack.first, weights, strict=True)))
        for site in range(sites):
            rule.accumulate(state, {n: g[:, site] for n, g in zip(stack.first, found, strict=True)})
        update = list(rule.finalize(state).value.values())
        if method.change == "sign":
            update = [u.sign() for u in update]
        if method.change == "norm":
            wanted = _norms([g.mean(1) for g in found]) / _norms(update).clamp(min=1e-12)
            update = [u * wanted.view(-1, *[1] * (u.dim() - 1)) for u in update]
        if method.penalty_weight:
            penalty = torch.autograd.grad(fishr(logits, features, y).sum(), leaves)
            update = [u + method.penalty_weight * g.sum(1) for u, g in zip(update, penalty, strict=True)]
        for k, row in enumerate(own):
            for parameter, gradient in zip(row, update, strict=True):
                parameter.grad = gradient[k]
        server.step()
        yield [torch.stack(column).detach() for column in zip(*own, strict=True)]


def _norms(tensors: Sequence[Tensor]) -> Tensor:
    """Return each seed's norm of all tensors together."""
    return torch.cat([tensor.flatten(1) for tensor in tensors], 1).norm(dim=1)


def scored(stack: Stack, method: Method) -> list[tuple[float, float]]:
    """Return each seed's log loss at the sites for choosing, and AUROC at the new site, of its model."""
    best = [(math.inf, math.nan)] * len(stack.test[1])
    for rate in RATES[method.server]:
        for number, weights in enumerate(trained(stack, method, rate), 1):
            if number % EVERY:
                continue
            wide = [w.unsqueeze(1) for w in weights]
            chosen = losses(outputs(wide, stack.choose[0])[0], stack.choose[1]).mean(1).tolist()
            logits = outputs(wide, stack.test[0])[0][:, 0]
            for k, loss in enumerate(chosen):
                if loss < best[k][0]:
                    best[k] = (loss, auroc(stack.test[1][k, 0], logits[k]))
    return best


def auroc(y: Tensor, logits: Tensor) -> float:
    """Return the area under the ROC curve."""
    counts = np.ones((1, len(y)))
    return float(areas(y.numpy() > 0, logits.double().numpy(), counts)[0][0])


def regression(stack: Stack) -> list[tuple[float, float]]:
    """Return the same of each seed's regression of the pooled data, whose ridge is chosen."""
    found = []
    for k in range(len(stack.test[1])):
        x, y, x_choose, y_choose = (part[k].flatten(0, 1) for part in (*stack.train, *stack.choose))
        best = (math.inf, math.nan)
        for ridge in RIDGES:
            model = LogisticRegression(C=1 / (len(y) * ridge), max_iter=1000).fit(x, y)
            loss = float(losses(torch.from_numpy(model.decision_function(x_choose)).float(), y_choose))
            if loss < best[0]:
                logits = torch.from_numpy(model.decision_function(stack.test[0][k, 0]))
                best = (loss, auroc(stack.test[1][k, 0], logits))
        found.append(best)
    return found


def rows_of(cell: Cell, seeds: Sequence[int]) -> list[Row]:
    """Train every method of a cell, and return a row per method and seed."""
    stack = Stack.of(cell, seeds)
    found = {LOGISTIC: regression(stack)}
    found |= {method.name: scored(stack, method) for method in cell.methods}
    return [
        dict(zip(COLUMNS, (*cell.key, name, str(seed), f"{loss:.4f}", f"{area:.4f}"), strict=True))
        for name, pairs in found.items()
        for seed, (loss, area) in zip(seeds, pairs, strict=True)
    ]


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a file of cells."""
    with path.open() as file:
        return list(csv.DictReader(file))


def gains(rows: Sequence[Row], cell: Cell) -> dict[str, list[float]]:
    """Return each method's differences from logistic regression by seed, and first that one's AUROC itself.

    Where lambda was varied, the one of lowest loss at the sites for choosing is taken for each seed.
    """
    mine = [row for row in rows if tuple(row[key] for key in COLUMNS[:6]) == cell.key]
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for row in mine:
        found.setdefault(row["method"], {})[row["seed"]] = float(row["loss"]), float(row["auroc"])
    for name in ("fedcurv", "fishr-inter-geo"):
        tried = [runs for method, runs in found.items() if method.startswith(f"{name}, lambda")]
        if tried:
            found[f"{name}, {CHOSEN}"] = {seed: min(runs[seed] for runs in tried) for seed in tried[0]}
    plain = {seed: area for seed, (_, area) in found.pop(LOGISTIC).items()}
    return {LOGISTIC: list(plain.values())} | {
        method: [area - plain[seed] for seed, (_, area) in runs.items()] for method, runs in found.items()
    }


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and half the width of the 95 % t-interval over seeds.

    >>> tuple(round(number, 3) for number in interval([0.1, 0.2, 0.3]))
    (0.2, 0.248)
    """
    width = float(student.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return fmean(values), width


def tables(rows: Sequence[Row]) -> list[str]:
    """Return one table per map as Markdown: gains over logistic regression with their intervals."""
    lines = []
    for one in MAPS:
        columns = [gains(rows, cell) for cell in one.cells]
        heads = [f"{getattr(cell, one.axis):g}" for cell in one.cells]
        base = one.cells[0]
        fixed = {"sites": f"{base.sites} sites", "rows": f"{base.rows} rows per site"}
        fixed |= {"strength": f"strength {base.strength:g}"}
        rest = ", ".join(text for axis, text in fixed.items() if axis != one.axis)
        lines += ["", f"**{one.title}**, by {one.label} ({rest})", ""]
        lines += [f"| {one.axis} | {' | '.join(heads)} |", f"|---|{'--:|' * len(heads)}"]
        for method in dict.fromkeys(name for column in columns for name in column):
            cells = [_cell(method, column[method]) if method in column else "" for column in columns]
            lines.append(f"| {method} | {' | '.join(cells)} |")
    seeds = len({row["seed"] for row in rows})
    about = (
        f"AUROC of logistic regression at the new site, and below it what other methods gain over it: mean "
        f"over {seeds} seeds ± half the 95 % interval, paired by seed. `python -m benchmarks.shortcut_maps` "
        "says how sites are made and how settings are chosen."
    )
    return [about, *lines]


def _cell(method: str, values: Sequence[float]) -> str:
    mean, width = interval(values)
    return f"{mean:.3f}" if method == LOGISTIC else f"{mean:+.3f} ± {width:.3f}"


ABSOLUTE, MATCHED = BOTH[-1], PENALISED[1]
DRAWN = {
    "own": (AGREED.name, LAYER.name, GEOMETRIC.name, ABSOLUTE.name, FEDSGD.name),
    "shared": (AGREED.name, PENALISED[4].name, GEOMETRIC.name, MATCHED.name, f"fedcurv, {CHOSEN}"),
}
PANELS = {"own": (0, 1, 2), "shared": (5, 6, 7)}


def picture(path: Path, rows: Sequence[Row]) -> None:
    """Draw the gains of some methods by strength, sites and rows, for linear models of either family."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(11, 6.6), layout="constrained")
        parts = figure.subfigures(2, 1)
        titles = ("each site has a shortcut of its own", "all sites share a shortcut, in unlike strength")
        for part, (family, places), title in zip(parts, PANELS.items(), titles, strict=True):
            part.suptitle(title, fontsize=11, fontweight="bold")
            panels = part.subplots(1, len(places), sharey=True)
            for axes, one in zip(panels, (MAPS[place] for place in places), strict=True):
                for place, (method, colour) in enumerate(zip(DRAWN[family], COLOURS, strict=False)):
                    found = [interval(gains(rows, cell)[method]) for cell in one.cells]
                    means, widths = zip(*found, strict=True)
                    where = np.arange(len(one.cells)) + 0.05 * (place - 2)
                    marks = {"marker": "o", "markersize": 4, "capsize": 2.5, "linewidth": 1.5}
                    axes.errorbar(where, means, widths, color=colour, label=method, **marks)
                axes.axhline(0, color="black", linewidth=1)
                axes.set_xticks(range(len(one.cells)), [f"{getattr(c, one.axis):g}" for c in one.cells])
                axes.set_xlabel(one.label)
            panels[0].set_ylabel("AUROC gained over\nlogistic regression")
            part.legend(*panels[0].get_legend_handles_labels(), loc="outside right center", fontsize=9)
        save(figure, path)


def write_table(path: Path, sites: int = 10, rows: int = 100, seed: int = 0) -> None:
    """Write sites of the first family as a table with the columns `site` and `label`."""
    made = site_shortcuts(seed, sites, rows, 1, FEATURES, 0.25, MARKERS, OWN.strength)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["site", "label", *(f"x{place}" for place in range(made.inputs[0]))])
        for silo in made.silos:
            for x, y in zip(silo.x.tolist(), silo.y.tolist(), strict=True):
                writer.writerow([silo.name, int(y), *(f"{value:.6g}" for value in x)])


def main() -> None:
    """Train the cells that are missing, and write the cells, the tables and the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shortcut_maps", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/shortcut-maps"))
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--table", type=Path, help="write a table for `fedilc study`, and train nothing")
    given = parser.parse_args()
    if given.table is not None:
        write_table(given.table)
        return
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    file, seeds = given.out / "cells.csv", range(given.seeds)
    rows = read_rows(file) if file.exists() else []
    wanted = list(dict.fromkeys(cell for one in MAPS for cell in one.cells))
    for number, cell in enumerate(wanted, 1):
        names = {LOGISTIC, *(method.name for method in cell.methods)}
        mine = [row for row in rows if tuple(row[key] for key in COLUMNS[:6]) == cell.key]
        if {(row["method"], int(row["seed"])) for row in mine} != {(n, k) for n in names for k in seeds}:
            rows = [row for row in rows if row not in mine] + rows_of(cell, seeds)
            text = io.StringIO()
            writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            write_atomically(file, text.getvalue().encode())
        print(f"{number} of {len(wanted)}: {cell}", flush=True)
    lines = tables(rows)
    (given.out / "table.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    if given.picture is not None:
        picture(given.picture, rows)


if __name__ == "__main__":
    main()
