"""What a coordinator takes and what it refuses, over a real socket: status, reason, strikes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedilc.federation import Reply
from fedilc.runtimes.remote.open_request import OpenRequest
from fedilc.runtimes.remote.wire import pack
from rest import detail, good_body, good_reply, post, put, queue_of, remote, served


def changed(open_request: OpenRequest, **numbers: Any) -> bytes:
    """A good answer with other numbers, or metrics in evaluation; those that are ... are left out."""
    reply = good_reply(open_request.request, open_request.manifest, "a")
    told = reply.metrics if open_request.step.metrics else reply.numbers
    told |= numbers
    for key in [key for key, value in told.items() if value is ...]:
        del told[key]
    return as_told(reply)


def as_told(reply: Reply) -> bytes:
    """Packed as it is, with numbers that an honest silo would not send."""
    honest = pack(reply.tensors, {})
    size = int.from_bytes(honest[:8], "little")
    header = json.loads(honest[8 : 8 + size])
    told = {"numbers": reply.numbers, "metrics": reply.metrics, "scales": {}}
    header["__metadata__"]["fedilc"] = json.dumps(told)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + honest[8 + size :]


def wrong_tensors(open_request: OpenRequest) -> dict[str, Reply]:
    def reply() -> Reply:
        return good_reply(open_request.request, open_request.manifest, "a")

    made = {
        name: reply() for name in ("name", "shape", "dtype", "nan", "infinity", "kind", "missing", "besides")
    }
    made["name"].tensors["gradient"]["stranger"] = made["name"].tensors["gradient"].pop("1.weight")
    made["shape"].tensors["gradient"]["1.weight"] = torch.zeros(3, 4)
    made["dtype"].tensors["gradient"]["1.weight"] = torch.zeros(4, 3).double()
    made["nan"].tensors["gradient"]["1.weight"][1, 1] = float("nan")
    made["infinity"].tensors["penalty"]["3.bias"][0] = float("inf")
    made["kind"].tensors["statistics"] = made["kind"].tensors.pop("penalty")
    del made["missing"].tensors["gradient"]["1.bias"]
    made["besides"].tensors["gradient"]["more"] = torch.zeros(1)
    return made


@pytest.mark.parametrize("what", ["name", "shape", "dtype", "nan", "infinity", "kind", "missing", "besides"])
def test_tensors_that_were_not_asked_for_are_refused_with_a_reason_and_a_strike(what: str) -> None:
    queue = queue_of()
    with served(queue) as client:
        open_request = post(queue)
        response = put(client, open_request, "a", as_told(wrong_tensors(open_request)[what]))
        assert response.status_code == 422
        assert "1 of 3" in detail(response)
        assert queue.silos["a"].strikes == 1
        assert queue.silos["b"].strikes == 0
        assert put(client, open_request, "a", good_body(open_request, "a")).status_code == 200


DOMAIN = {"loss": None, "accuracy": 0.5, "auroc": None, "auprc": None, "examples": 3}
NUMBERS: dict[str, tuple[str, dict[str, Any]]] = {
    "no loss": ("matched-update", {"loss": ...}),
    "no examples": ("matched-update", {"examples": ...}),
    "no distance": ("matched-update", {"distance": ...}),
    "a loss of none": ("matched-update", {"loss": None}),
    "a loss of text": ("matched-update", {"loss": "0.5"}),
    "a loss that is too large to add": ("matched-update", {"loss": 1e308}),
    "a loss that is NaN": ("matched-update", {"loss": float("nan")}),
    "no examples at all": ("matched-update", {"examples": 0}),
    "an integer of 400 digits": ("matched-update", {"examples": 10**400}),
    "a truth": ("matched-update", {"examples": True}),
    "a negative distance": ("matched-update", {"distance": -1.0}),
    "a number besides": ("matched-update", {"secret": 1.0}),
    "numbers in statistics": ("statistics", {"loss": 1.0}),
    "no accuracy": ("evaluate", {"accuracy": ...}),
    "no auroc": ("evaluate", {"auroc": ...}),
    "an accuracy of 2": ("evaluate", {"accuracy": 2.0}),
    "an accuracy of 1e300": ("evaluate", {"accuracy": 1e300}),
    "a metric of its own": ("evaluate", {"beauty": 1.0}),
    "a sub-domain with a name of a page": ("evaluate", {"domains": {"x" * 5000: DOMAIN}}),
    "thousands of sub-domains": ("evaluate", {"domains": {str(i): DOMAIN for i in range(1001)}}),
    "a metric of its own of a sub-domain": ("evaluate", {"domains": {"x": DOMAIN | {"beauty": 1.0}}}),
    "an accuracy of 2 of a sub-domain": ("evaluate", {"domains": {"x": DOMAIN | {"accuracy": 2.0}}}),
    "sub-domains that are none": ("evaluate", {"domains": [DOMAIN]}),
}


@pytest.mark.parametrize("what", NUMBERS)
def test_numbers_that_would_stop_the_run_are_refused(what: str) -> None:
    step, numbers = NUMBERS[what]
    queue = queue_of()
    with served(queue) as client:
        open_request = post(queue, step)
        response = put(client, open_request, "a", changed(open_request, **numbers))
        assert response.status_code == 422
        assert len(detail(response)) < 400
        assert put(client, open_request, "a", good_body(open_request, "a")).status_code == 200


def test_metrics_by_sub_domain_and_undefined_ones_are_taken() -> None:
    queue = queue_of()
    with served(queue) as client:
        open_request = post(queue, "evaluate")
        body = changed(open_request, loss=None, domains={"-40°": DOMAIN})
        assert put(client, open_request, "a", body).status_code == 200


def test_a_silo_without_a_validation_set_measures_nothing() -> None:
    queue = queue_of()
    with served(queue) as client:
        open_request = post(queue, "evaluate")
        assert put(client, open_request, "a", as_told(Reply("a", "evaluate", 1))).status_code == 200


def test_a_silo_that_was_not_asked_to_measures_nothing_either() -> None:
    queue = queue_of()
    with served(queue) as client:
        open_request = post(queue)
        reply = good_reply(open_request.request, open_request.manifest, "a")
        reply.metrics = DOMAIN
        assert put(client, open_request, "a", as_told(reply)).status_code == 422


def test_after_three_strikes_a_silo_is_set_aside_and_told_so_everywhere() -> None:
    queue = queue_of()
    with served(queue) as client:
        open_request = post(queue)
        codes = [put(client, open_request, "a", b"nonsense").status_code for _ in range(4)]
        assert codes == [422, 422, 422, 403]
        assert queue.silos["a"].state == "set aside"
        assert client.get("/v1/silos/a/task").status_code == 403
        joining = {"manifest": queue.manifest.hash, "examples": 3}
        refused = client.post("/v1/silos/a/join", json=joining)
        assert refused.status_code == 403
        assert "set aside" in detail(refused)
        assert put(client, open_request, "b", good_body(open_request, "b")).status_code == 200
        assert queue.is_settled() is False
        assert queue.take_reply(1) is not None
        assert queue.is_settled() is True


def test_the_same_answer_twice_is_taken_once_and_another_is_a_conflict() -> None:
    queue = queue_of()
    with served(queue) as client:
        open_request = post(queue)
        good = good_body(open_request, "a")
        assert [put(client, open_request, "a", good).status_code for _ in range(3)] == [200] * 3
        assert put(client, open_request, "a", changed(open_request, loss=0.25)).status_code == 409
        assert queue.take_reply(1) is not None
        assert queue.take_reply(0.05) is None


def test_two_different_answers_at_the_same_time_are_one_answer_and_conflicts() -> None:
    queue = queue_of()
    with served(queue) as client:
        open_request = post(queue)
        bodies = [changed(open_request, loss=loss / 8) for loss in range(1, 7)]
        with ThreadPoolExecutor(6) as threads:
            found = list(threads.map(lambda body: put(client, open_request, "a", body).status_code, bodies))
        assert sorted(found) == [200] + [409] * 5


def test_an_answer_out_of_step_or_round_or_to_no_task_is_a_conflict_without_a_strike() -> None:
    queue = queue_of()
    with served(queue) as client:
        early = post(queue, "matched-update")
        body = good_body(early, "a")
        queue.close(())
        assert put(client, early, "a", body).status_code == 409
        now = post(queue, "statistics")
        assert put(client, early, "a", body).status_code == 409
        for path in ("rounds/2/statistics", "rounds/1/matched-update", "rounds/1/evaluate"):
            response = client.put(f"/v1/silos/a/{path}", params={"task": now.name}, content=body)
            assert response.status_code == 409
        wrong_task = client.put("/v1/silos/a/rounds/1/statistics", params={"task": "x"}, content=body)
        assert wrong_task.status_code == 409
        assert queue.silos["a"].strikes == 0


def test_a_task_is_for_those_who_were_asked() -> None:
    queue = queue_of(remote(["a", "b", "c"]))
    request = post(queue).request
    some = OpenRequest(replace(request, silos=("a", "b")), queue.manifest)
    queue.open(some)
    with served(queue) as client:
        assert client.get("/v1/silos/c/task").status_code == 204
        assert client.get("/v1/silos/a/task").status_code == 200
        assert put(client, some, "c", good_body(some, "c")).status_code == 409


@pytest.mark.parametrize("examples", [9, 1_000_000])
def test_another_number_of_examples_than_a_silo_joined_with_is_refused(examples: int) -> None:
    queue = queue_of()
    with served(queue) as client:
        open_request = post(queue)
        response = put(client, open_request, "a", changed(open_request, examples=examples))
    assert response.status_code == 422
    assert f"it has {examples} examples, but joined with 10" in detail(response)
