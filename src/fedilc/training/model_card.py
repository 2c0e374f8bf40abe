"""`model-card.md`: what a model was trained on, how, and how well it did; its use is left to fill in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from fedilc.algorithms.loss_name import LossName, has_classes
from fedilc.config import Options
from fedilc.data.outline import Outline
from fedilc.errors import CheckpointError, ConfigError
from fedilc.evaluation import select
from fedilc.evaluation.intervals import Interval, bootstrap_intervals
from fedilc.gradients import Loss, Workbench
from fedilc.training.result import Result

FILE = "model-card.md"
_RESAMPLES = 200
_MOST_EXAMPLES = 20_000
_MOST_SILOS = 50


def model_card(facts: Mapping[str, Any], result: Result, outline: Outline) -> str:
    """Return the card of a finished run; `facts` are those of its run.json."""
    criterion, record = _chosen(result.history)
    intervals = _intervals(facts["loss"], result, criterion, outline.x_test, outline.y_test)
    made = outline.preprocessing
    classes = made.label.classes if made is not None else facts.get("classes") or ()
    parts = [
        f"# Model card: {facts['federation']}, {facts['algorithm']}",
        "## Intended use\n\nTo fill in: who may use this model, for which decisions, and for what not.",
        _model(facts, record, criterion, classes),
        _data(facts),
        _results(record, intervals),
        _settings(facts),
        "## Limits\n\nTo fill in: for whom it was not tested, what shift it may not survive, who watches it.",
    ]
    return "\n\n".join(parts) + "\n"


def _chosen(history: Sequence[Mapping[str, Any]]) -> tuple[str, Mapping[str, Any]]:
    """Return the round that validation chooses, or the last one if there is no validation."""
    try:
        return "validation", select(history, "validation")
    except ConfigError:
        return "last", select(history, "last")


def _intervals(
    loss: LossName, result: Result, criterion: str, x: Tensor | None, y: Tensor | None
) -> Mapping[str, Interval]:
    """Return the scores of the test set; none if it is not here or large, or if the weights are gone."""
    if x is None or y is None or len(x) > _MOST_EXAMPLES:
        return {}
    try:
        model = result.best_model(criterion)
    except CheckpointError:
        return {}
    bench = Workbench(model, Loss(loss))
    logits = bench.predict(bench.inputs(x)).double().cpu().numpy()
    kind = loss if has_classes(loss) else "regression"
    return bootstrap_intervals(kind, y.cpu().numpy(), logits, resamples=_RESAMPLES, calibration=False)


def _model(
    facts: Mapping[str, Any], record: Mapping[str, Any], criterion: str, classes: Sequence[object]
) -> str:
    about = facts["model"]
    lines = [
        f"- network: `{about.get('name') or about.get('function') or 'one of its own'}`, inputs "
        f"{about['inputs']}, outputs {about['outputs']}",
        f"- weights: round {record['round']}, chosen by {criterion}",
        f"- task: {facts['loss']}"
        + (f", label `{facts['label']}`" if facts.get("label") else "")
        + (f", classes {', '.join(map(str, classes))}" if classes else ""),
    ]
    if facts.get("columns"):
        lines.append(f"- inputs: {', '.join(f'`{name}`' for name in facts['columns'])}")
    return "## Model\n\n" + "\n".join(lines)


def _data(facts: Mapping[str, Any]) -> str:
    rows = [
        f"| {name} | {about.get('examples', '')} | {about.get('digest', '')} |"
        for name, about in list(facts["silos"].items())[:_MOST_SILOS]
    ]
    hidden = len(facts["silos"]) - _MOST_SILOS
    more = [f"\n{hidden} more sites are in run.json."] if hidden > 0 else []
    test = [f"\nTest set: digest {facts['test']}; no site trained on it."] if facts.get("test") else []
    head = ["| site | training examples | digest |", "|---|---|---|"]
    return "## Data\n\n" + "\n".join([*head, *rows, *more, *test])


def _results(record: Mapping[str, Any], intervals: Mapping[str, Interval]) -> str:
    rows = [
        f"| {key.replace('_', ' ')} | {value:.4f} |"
        for key, value in record.items()
        if isinstance(value, float) and key.partition("_")[0] in ("train", "validation", "test")
    ]
    text = "\n".join(
        ["## Results\n", f"At round {record['round']}:\n", "| score | value |", "|---|---|", *rows]
    )
    if not intervals:
        return text
    lines = [f"| {name.replace('_', ' ')} | {interval} |" for name, interval in intervals.items()]
    title = "Test set, with 95% bootstrap intervals over its examples:\n\n| score | value |\n|---|---|\n"
    return f"{text}\n\n{title}" + "\n".join(lines)


def _settings(facts: Mapping[str, Any]) -> str:
    kept = {key: facts[key] for key in Options.model_fields if facts.get(key) not in (None, {})}
    rows = [f"| {key} | {value} |" for key, value in {"algorithm": facts["algorithm"], **kept}.items()]
    return "## Settings\n\n" + "\n".join(["| setting | value |", "|---|---|", *rows])
