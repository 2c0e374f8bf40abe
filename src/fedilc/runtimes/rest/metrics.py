"""The metrics of a run in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, get_args

from fedilc.runtimes.rest.membership import State

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SILO = {
    "examples": ("gauge", "Examples that the silo trains on.", "examples"),
    "last_seen_timestamp_seconds": ("gauge", "When the silo was last seen.", "last_seen"),
    "loss": ("gauge", "The silo's last training loss.", "loss"),
    "received_bytes_total": ("counter", "Bytes that the silo sent.", "bytes_received"),
    "sent_bytes_total": ("counter", "Bytes that the silo was sent.", "bytes_sent"),
    "strikes_total": ("counter", "Replies of the silo that were refused.", "strikes"),
}


def exposition(
    status: Mapping[str, Any],
    last: Mapping[str, Any],
    refusals: Mapping[int, int],
    connections: Mapping[str, int],
) -> str:
    """Return all metrics as text, from a run's status, its last record, and what was counted."""
    lines = [
        *_metric("rounds_completed", "gauge", "Completed rounds.", {"": status["completed"]}),
        *_metric("rounds_planned", "gauge", "Rounds of the run.", {"": status["rounds"]}),
        *_metric("round_seconds", "gauge", "Seconds per round.", {"": status["seconds_a_round"]}),
        *_metric("ended", "gauge", "Whether the run is over.", {"": int(status["outcome"] is not None)}),
    ]
    for key in ("train_loss", "validation_loss", "test_loss"):
        lines += _metric(key, "gauge", "Of the last round that has it.", {"": last.get(key)})
    silos = status["silos"]
    states = Counter(silo["state"] for silo in silos)
    by_state = {_label(state=state): states[state] for state in get_args(State)}
    lines += _metric("silos", "gauge", "Silos by state.", by_state)
    for name, (kind, about, key) in _SILO.items():
        values = {_label(silo=silo["name"]): silo[key] for silo in [*silos, *status.get("carriers", [])]}
        lines += _metric(f"silo_{name}", kind, about, values)
    refused = {_label(status=code): times for code, times in sorted(refusals.items())}
    lines += _metric("http_refused_total", "counter", "Refused requests by status.", refused)
    lines += _metric("connections", "gauge", "Open connections.", {"": connections.get("open", 0)})
    cut = {"": connections.get("cut", 0)}
    lines += _metric("connections_cut_total", "counter", "Connections closed to make room.", cut)
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, about: str, values: Mapping[str, float | None]) -> Iterator[str]:
    known = {label: value for label, value in values.items() if value is not None}
    if known:
        yield f"# HELP fedilc_{name} {about}"
        yield f"# TYPE fedilc_{name} {kind}"
        yield from (f"fedilc_{name}{label} {value!r}" for label, value in known.items())


def _label(**pairs: object) -> str:
    r"""Return labels in braces, escaped.

    >>> _label(silo='a"b\n')
    '{silo="a\\"b\\n"}'
    """
    escaped = {
        key: str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        for key, value in pairs.items()
    }
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped.items()) + "}"
