"""Metrics are for viewers, in the text format of Prometheus."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from fedilc.runtimes.rest.auth import Tokens, add_token
from fedilc.runtimes.rest.monitoring import exposition
from rest import bearer, queue_of, served


def test_metrics_are_for_viewers_and_in_prometheus_own_format(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    silo, viewer = add_token(file, "a"), add_token(file, "me", "viewers")
    queue = queue_of()
    queue.record({"round": 1, "train_loss": 0.5, "test_loss": None}, 0.25)
    with served(queue, Tokens.read(file)) as client:
        assert client.get("/metrics").status_code == 401
        assert client.get("/metrics", headers=bearer(silo)).status_code == 401
        answer = client.get("/metrics", headers=bearer(viewer))
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = [line for line in answer.text.splitlines() if not line.startswith("#")]
    values = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in samples}
    assert values["fedilc_rounds_completed"] == 1
    assert values["fedilc_train_loss"] == 0.5
    assert values['fedilc_silos{state="waiting"}'] == 2
    assert values['fedilc_silo_examples{silo="a"}'] == 10
    assert values['fedilc_http_refused_total{status="401"}'] == 2
    assert values["fedilc_connections"] >= 1
    named = {line.split()[2] for line in answer.text.splitlines() if line.startswith("# TYPE")}
    assert {key.partition("{")[0] for key in values} == named


def test_prometheus_own_parser_reads_names_kinds_and_labels_of_any_spelling() -> None:
    silo = {"name": 'a"b\\\n', "state": "waiting", "examples": 10, "last_seen": 2.5, "loss": None}
    silo |= {"bytes_received": 7, "bytes_sent": 2**60, "strikes": 1}
    status = {"completed": 3, "rounds": 9, "seconds_a_round": None, "outcome": "complete", "silos": [silo]}
    text = exposition(status, {"train_loss": 0.1}, {429: 4}, {"open": 2, "cut": 1}).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    values = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert values["fedilc_silo_sent_bytes_total", 'a"b\\\n'] == 2**60
    assert values["fedilc_http_refused_total", "429"] == 4
    assert values["fedilc_train_loss",] == 0.1
    assert values["fedilc_ended",] == 1
    assert "fedilc_silo_loss" not in families
    assert families["fedilc_connections_cut"].type == "counter"
    assert families["fedilc_connections"].type == "gauge"
