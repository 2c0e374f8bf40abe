"""What a sub-coordinator sends is held to the step that was asked for, and refused with one sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from trees import calling

from fedilc.errors import ConfigError
from fedilc.federation.protocol import AggregatedReply
from fedilc.federation.step_sums import StepSums
from fedilc.runtimes.remote.open_request import OpenRequest, pack_aggregated_reply, request_weights
from fedilc.runtimes.rest.auth import Tokens, add_token
from fedilc.runtimes.rest.http_client import CoordinatorError, HttpClient
from fedilc.runtimes.rest.membership import STRIKES, RefusedError
from fedilc.runtimes.rest.sub_coordinator import SubCoordinator
from fedilc.runtimes.rest.task_queue import TaskQueue
from fedilc.storage.files import pack_tensors
from rest import bearer, detail, good_reply, post, put, queue_of, remote, served, spooled, training_of

STEP = "matched-update"


def queue_with_sub_coordinator(step: str = STEP) -> tuple[TaskQueue, OpenRequest]:
    """A queue at which a sub-coordinator answers for `a` and `b`, and a silo for itself."""
    queue = training_of(remote(("a", "b", "c")))[1]
    queue.join_sub_coordinator("north", {"a": 10, "b": 10}, {})
    queue.join("c", 10)
    return queue, post(queue, step)


def summed(open_request: OpenRequest, *silos: str, times: float = 1.0) -> AggregatedReply:
    """The sums of good replies, each `times` as long."""
    like = {
        group: {name: torch.empty(one.shape) for name, one in answer.like.items()}
        for group, answer in open_request.step.answers.items()
    }
    weights = request_weights(open_request.request, open_request.manifest)
    total = StepSums(open_request.step, like, weights)
    for silo in silos:
        reply = good_reply(open_request.request, open_request.manifest, silo)
        for named in reply.tensors.values():
            named.update({name: times * tensor for name, tensor in named.items()})
        total.add(reply)
    return total.aggregated_reply()


def accept(queue: TaskQueue, open_request: OpenRequest, body: bytes) -> None:
    queue.accept("north", 1, STEP, open_request.name, spooled(body))


def test_sums_of_both_are_taken_once_and_both_have_answered() -> None:
    queue, open_request = queue_with_sub_coordinator()
    body = pack_aggregated_reply(summed(open_request, "a", "b"))
    assert len(body) <= open_request.max_aggregated_bytes(2)
    accept(queue, open_request, body)
    accept(queue, open_request, body)
    held = queue.take_reply(1)
    assert held is not None
    assert held.silos == ("a", "b")
    assert queue.take_reply(0) is None
    assert {queue.silos[name].state for name in "ab"} == {"answered"}
    with pytest.raises(RefusedError, match="another reply"):
        accept(queue, open_request, pack_aggregated_reply(summed(open_request, "a")))
    assert queue.answered("north") == (open_request.name, ["a", "b"])


def test_its_silos_may_be_answered_for_in_parts() -> None:
    queue, open_request = queue_with_sub_coordinator()
    first = summed(open_request, "a")
    first.lost = {"b": "did not reply in time"}
    accept(queue, open_request, pack_aggregated_reply(first))
    assert (queue.silos["b"].state, queue.silos["b"].reason) == ("lost", "did not reply in time")
    assert queue.task_for("north") is None
    queue.join_sub_coordinator("north", {"a": 10, "b": 10}, {})
    assert queue.task_for("north") is open_request
    accept(queue, open_request, pack_aggregated_reply(summed(open_request, "b")))
    found = [queue.take_reply(0) for _ in range(2)]
    assert [held.silos for held in found if held is not None] == [("a",), ("b",)]


Forge = Callable[[dict[str, torch.Tensor], dict[str, Any]], None]
FIRST = "gradient/1.weight/signs"


def tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Forge:
    def forge(tensors: dict[str, torch.Tensor], _about: dict[str, Any]) -> None:
        tensors[name] = change(tensors[name])

    return forge


def told(change: Callable[[dict[str, Any]], object]) -> Forge:
    return lambda _tensors, about: (change(about), None)[1]


def of_a(**changes: Any) -> Forge:
    return told(lambda about: about["replies"]["a"].update(changes))


def loss(value: object) -> Forge:
    return told(lambda about: about["replies"]["a"]["numbers"].update(loss=value))


FORGED: dict[str, tuple[Forge, str]] = {
    "another shape": (tensor(f"{FIRST}/counts", lambda t: t[:, :-1]), "was expected"),
    "another dtype": (tensor(f"{FIRST}/counts", lambda t: t.to(torch.int16)), "'U8' of shape"),
    "no values": (tensor(f"{FIRST}/low", lambda t: t.float()), "'I32' of shape"),
    "more members than silos": (tensor(f"{FIRST}/counts", lambda t: t + 3), "are not those of 2 values"),
    "impossible logarithms": (
        tensor(f"{FIRST}/high", lambda t: t + (1 << 20)),
        "are outside the range that values of these norms can have",
    ),
    "more words than a sum has": (
        tensor("penalty/1.weight/total", lambda t: t.repeat(9, 1)),
        "but a sum of float32 may only use words 28 to 38",
    ),
    "a sum that is far away": (
        told(lambda about: about["lowest"].update({"penalty/1.weight/total": 10**9})),
        "a sum of float32 may only use words",
    ),
    "no place of a sum": (told(lambda about: about["lowest"].clear()), "no lowest word"),
    "no places": (told(lambda about: about.update(lowest=3)), "no object of lowest words"),
    "a tensor too many": (lambda tensors, _: tensors.update(x=torch.zeros(1)), "which was not asked for"),
    "a tensor too few": (lambda tensors, _: (tensors.pop(f"{FIRST}/low"), None)[1], "it lacks the tensor"),
    "a loss that is none": (loss("low"), "for silo 'a': its loss is not a number"),
    "a loss of NaN": (loss(float("nan")), "for silo 'a': its loss is not a number"),
    "other numbers": (of_a(numbers={"loss": 1.0}), "for silo 'a': its numbers are"),
    "other examples": (
        told(lambda about: about["replies"]["a"]["numbers"].update(examples=11)),
        "silo 'a' has 11 examples, but joined with 10",
    ),
    "a negative norm": (of_a(norms={"gradient": -1.0, "penalty": 1.0}), "the norm of its gradient"),
    "a norm that is too small": (
        told(lambda about: [said["norms"].update(penalty=1e-3) for said in about["replies"].values()]),
        "times as long as the norms of its silos' answers",
    ),
    "one norm of two": (of_a(norms={"gradient": 1.0}), "its norms are not those"),
    "metrics that were not asked for": (of_a(metrics={"loss": 1.0}), "although the step has none"),
    "no silo": (told(lambda about: about["replies"].clear()), "it replies for no silo"),
    "a silo that says nothing": (told(lambda about: about["replies"].update(a=3)), "for silo 'a'"),
    "losses that are none": (told(lambda about: about.update(lost=["b"])), "its lost silos"),
    "a loss without end": (told(lambda about: about.update(lost={"b": "x" * 501})), "are not sentences"),
}


def forged(open_request: OpenRequest, forge: Forge) -> bytes:
    reply = summed(open_request, "a", "b")
    tensors = {f"{group}/{name}": t for group, s in reply.sums.items() for name, t in s.tensors.items()}
    body = pack_aggregated_reply(reply)
    size = int.from_bytes(body[:8], "little")
    about = json.loads(json.loads(body[8 : 8 + size])["__metadata__"]["fedilc"])
    forge(tensors, about)
    return pack_tensors(tensors, {"fedilc": json.dumps(about)})


@pytest.mark.parametrize("what", FORGED)
def test_forged_sums_are_refused_with_a_sentence(what: str) -> None:
    queue, open_request = queue_with_sub_coordinator()
    forge, reason = FORGED[what]
    with pytest.raises(RefusedError, match=re.escape(reason)) as refused:
        accept(queue, open_request, forged(open_request, forge))
    assert refused.value.status == 422
    assert queue.take_reply(0) is None
    accept(queue, open_request, forged(open_request, lambda _tensors, _about: None))


@pytest.mark.parametrize("silo", ["b", "c", "nobody"])
def test_sums_for_a_silo_that_is_not_asked_now_are_no_strike(silo: str) -> None:
    """After a restart a coordinator may have replies that a sub-coordinator does not know of."""
    queue, open_request = queue_with_sub_coordinator()
    accept(queue, open_request, pack_aggregated_reply(summed(open_request, "b")))
    body = forged(open_request, told(lambda about: about["replies"].update({silo: about["replies"]["a"]})))
    for _ in range(STRIKES + 1):
        with pytest.raises(RefusedError, match="is not asked now; ask for the task again") as refused:
            accept(queue, open_request, body)
        assert refused.value.status == 409
    assert queue.sub_coordinators["north"].strikes == 0
    accept(queue, open_request, pack_aggregated_reply(summed(open_request, "a")))
    assert {queue.silos[name].state for name in "ab"} == {"answered"}


def test_a_norm_whose_square_overflows_is_refused_as_any_other_that_is_too_large() -> None:
    queue, open_request = queue_with_sub_coordinator("statistics")
    (group,) = open_request.step.answers
    assert open_request.step.answers[group].order == 2
    body = forged(
        open_request,
        told(lambda about: [said["norms"].update({group: 1e200}) for said in about["replies"].values()]),
    )
    with pytest.raises(RefusedError, match="as long as the norms") as refused:
        queue.accept("north", 1, "statistics", open_request.name, spooled(body))
    assert refused.value.status == 422


LONG_SUMS: dict[str, tuple[dict[str, Any], float, bool]] = {
    "max_norm, and norms that match": ({"algorithm": "fedsgd", "max_norm": 0.001}, 90.0, True),
    "max_norm with the examples as weights": (
        {"algorithm": "fedsgd", "max_norm": 0.001, "silo_weights": "examples"},
        90.0,
        True,
    ),
    "max_norm of geometric sums and of penalties": (
        {"algorithm": "fishr-inter-geo", "max_norm": 0.001},
        90.0,
        True,
    ),
    "examples as weights": ({"algorithm": "fedsgd", "silo_weights": "examples"}, 1e6, False),
    "own weights": ({"algorithm": "fedsgd", "silo_weights": {"a": 1.0, "b": 2.0, "c": 3.0}}, 1e6, False),
    "weights that the server learns": ({"algorithm": "group-dro"}, 1e6, False),
}


@pytest.mark.parametrize("what", LONG_SUMS)
def test_sums_that_are_too_long_for_norms_weights_and_max_norm_are_refused(what: str) -> None:
    """Over a real socket: the sender is named, and set aside after the third time."""
    settings, times, also_norms = LONG_SUMS[what]
    queue = training_of(remote(("a", "b", "c"), **settings))[1]
    queue.join_sub_coordinator("north", {"a": 10, "b": 10}, {})
    queue.join("c", 10)
    open_request = post(queue)
    honest = summed(open_request, "a", "b")
    unclipped = remote(("a", "b", "c"), **{k: v for k, v in settings.items() if k != "max_norm"})
    forged = summed(post(training_of(unclipped)[1]), "a", "b", times=times)
    if not also_norms:
        forged.norms = honest.norms
    with served(queue) as client:
        refused = put(client, open_request, "north", pack_aggregated_reply(forged))
        assert refused.status_code == 422
        assert "sub-coordinator 'north' and its silos are set aside" in detail(refused)
        assert "gradient: its sums" in detail(refused)
        good = put(client, open_request, "north", pack_aggregated_reply(honest))
        assert good.status_code == 200, good.text


def test_after_three_times_the_sub_coordinator_is_set_aside_and_its_silos_with_it() -> None:
    queue, open_request = queue_with_sub_coordinator()
    for number in range(STRIKES):
        with pytest.raises(RefusedError, match=f"{number + 1} of {STRIKES}"):
            accept(queue, open_request, b"nonsense")
    assert {queue.silos[name].state for name in "ab"} == {"set aside"}
    assert str(queue.silos["a"].reason).startswith("sub-coordinator 'north': the body is not")
    assert queue.silos["c"].state == "waiting"
    with pytest.raises(RefusedError, match="'north' was set aside"):
        queue.task_for("north")


def test_a_body_larger_than_the_steps_sums_is_not_read() -> None:
    queue, open_request = queue_with_sub_coordinator()
    with served(queue) as client:
        response = put(client, open_request, "north", b"x" * (open_request.max_aggregated_bytes(2) + 1))
        assert response.status_code == 413
        good = put(client, open_request, "north", pack_aggregated_reply(summed(open_request, "a", "b")))
        assert good.status_code == 200, good.text


def test_the_page_and_the_metrics_of_the_root_show_silos_and_their_sub_coordinator() -> None:
    queue, open_request = queue_with_sub_coordinator()
    with served(queue) as client:
        put(client, open_request, "north", pack_aggregated_reply(summed(open_request, "a", "b")))
        silos = {silo["name"]: silo for silo in client.get("/v1/status").json()["silos"]}
        assert [silos[name]["via"] for name in "abc"] == ["north", "north", None]
        assert silos["a"]["state"] == "answered"
        metrics = client.get("/metrics").text
    assert 'fedilc_silos{state="answered"} 2' in metrics
    assert 'fedilc_silo_loss{silo="b"} 0.5' in metrics
    assert 'fedilc_silo_received_bytes_total{silo="north"}' in metrics


def test_a_sub_coordinator_replies_only_for_the_silos_of_its_token(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    north = add_token(file, "north", carries=["a", "b"])
    add_token(file, "c")
    queue = training_of(remote(("a", "b", "c")))[1]
    with served(queue, Tokens.read(file)) as client:
        join = partial(client.post, "/v1/silos/north/join", headers=bearer(north))
        said = {"manifest": queue.manifest.hash, "leaves": {"a": 3, "c": 3}}
        refused = join(json=said)
        assert refused.status_code == 403
        assert "'north' may not reply for silo 'c'" in detail(refused)
        assert join(json={**said, "leaves": {"a": 3, "b": 3}}).json()["silo"] == "north"
        assert join(json={**said, "leaves": {"a": 0}}).status_code == 422
        other = client.post("/v1/silos/c/join", headers=bearer(north), json={**said, "examples": 3})
        assert other.status_code in (401, 422)
        line = HttpClient(str(client.base_url), north)
        sub = SubCoordinator(line, "north")
        below = TaskQueue(sub.find_run())
        below.join("c", 3)
        with pytest.raises(CoordinatorError, match="refuses silo 'north': 'north' may not reply for"):
            sub.take_part(below)
        line.close()


def test_a_sub_coordinator_has_a_name_of_its_own() -> None:
    queue = queue_of(remote(("a", "b")))
    with served(queue) as client:
        said = {"manifest": queue.manifest.hash, "leaves": {"b": 3}}
        refused = client.post("/v1/silos/a/join", json=said)
        assert (refused.status_code, "another name" in detail(refused)) == (422, True)
        refused = client.post("/v1/silos/north/join", json={**said, "leaves": {"x": 3}})
        assert (refused.status_code, detail(refused)) == (422, "no silo of this run is called 'x'")
        with (
            calling(str(client.base_url)) as line,
            pytest.raises(ConfigError, match="'a' is a silo of the run"),
        ):
            SubCoordinator(line, "a").find_run()
