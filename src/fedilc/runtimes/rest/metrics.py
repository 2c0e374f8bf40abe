"""The metrics of a run in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fedilc.runtimes.rest.membership import State

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SILO = {
    "examples": ("Examples that the silo trains on.", "examples"),
    "last_seen_timestamp_seconds": ("When the silo was last seen.", "last_seen"),
    "loss": ("The silo's last training loss.", "loss"),
    "received_bytes_total": ("Bytes that the silo sent.", "bytes_received"),
    "sent_bytes_total": ("Bytes that the silo was sent.", "bytes_sent"),
    "strikes_total": ("Replies of the silo that were refused.", "strikes"),
}


def exposition(
    status: Mapping[str, Any],
    last: Mapping[str, Any],
    refusals: Mapping[int, int],
    connections: Mapping[str, int],
) -> bytes:
    """Return all metrics as text, from a run's status, its last record, and what was counted."""
    registry = CollectorRegistry()
    registry.register(_Run(status, last, refusals, connections))
    return generate_latest(registry)


@dataclass(frozen=True, eq=False)  # a registry hashes its collectors
class _Run(Collector):
    """What is known now; Prometheus's own counters would keep a second copy of it."""

    status: Mapping[str, Any]
    last: Mapping[str, Any]
    refusals: Mapping[int, int]
    connections: Mapping[str, int]

    def collect(self) -> list[Metric]:
        """Return each metric that has a value."""
        return [metric for metric in self._metrics() if metric.samples]

    def _metrics(self) -> Iterator[Metric]:
        status, silos = self.status, self.status["silos"]
        yield _metric("rounds_completed", "Completed rounds.", status["completed"])
        yield _metric("rounds_planned", "Rounds of the run.", status["rounds"])
        yield _metric("round_seconds", "Seconds per round.", status["seconds_a_round"])
        yield _metric("ended", "Whether the run is over.", status["outcome"] is not None)
        for key in ("train_loss", "validation_loss", "test_loss"):
            yield _metric(key, "Of the last round that has it.", self.last.get(key))
        states = Counter(silo["state"] for silo in silos)
        yield _metric("silos", "Silos by state.", {name: states[name] for name in get_args(State)}, "state")
        for name, (about, key) in _SILO.items():
            values = {silo["name"]: silo[key] for silo in [*silos, *status.get("carriers", [])]}
            yield _metric(f"silo_{name}", about, values, "silo")
        refused = {str(code): times for code, times in sorted(self.refusals.items())}
        yield _metric("http_refused_total", "Refused requests by status.", refused, "status")
        yield _metric("connections", "Open connections.", self.connections.get("open", 0))
        yield _metric(
            "connections_cut_total", "Connections closed to make room.", self.connections.get("cut", 0)
        )


def _metric(name: str, about: str, values: Any, label: str | None = None) -> Metric:
    """Return a counter if the name ends with _total, or a gauge; with a label, there is a value for each."""
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    metric = kind(f"fedilc_{name}", about, labels=[] if label is None else [label])
    for key, value in (values if label is not None else {None: values}).items():
        if value is not None:
            metric.add_metric([] if key is None else [key], float(value))
    return metric
