"""Metrics are for viewers, in the text format of Prometheus."""

from __future__ import annotations

from pathlib import Path

from fedilc.runtimes.rest.tokens import Tokens, add_token
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
