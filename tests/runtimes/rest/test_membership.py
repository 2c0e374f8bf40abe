"""Who takes part: which silos are present, which are lost, and which sub-coordinator replies for a silo."""

from __future__ import annotations

import re
import time

import pytest

from fedilc.errors import SilosLostError
from fedilc.runtimes.rest.membership import (
    CONTACT_SECONDS,
    SENT_AWAY_SECONDS,
    STRIKES,
    Membership,
    RefusedError,
)
from rest import queue_of, remote, training_of

ELSEWHERE = "silo {!r} is connected elsewhere ({}); stop it there, or wait until that connection is gone"


def members(**silos_of: str) -> Membership:
    """Three silos that have not joined, and sub-coordinators that have, with their silos."""
    found = Membership(training_of(remote(("a", "b", "c")))[1].manifest)
    for name, silos in silos_of.items():
        found.join_sub_coordinator(name, dict.fromkeys(silos, 10), {})
    return found


def via(found: Membership) -> list[str | None]:
    return [silo.via for silo in found.silos.values()]


def test_a_silo_is_present_from_its_joining_until_it_is_lost_and_again_when_it_asks() -> None:
    found = members()
    assert found.present() == {}
    found.join("a", 3)
    assert found.present() == {"a": 3}
    found.mark_late("a")
    assert (found.present(), found.reasons("ab")) == ({}, {"a": "did not reply in time"})
    assert found.all_gone("a")
    found.mark_present("a")
    assert (found.present(), found.reasons("a")) == ({"a": 3}, {})


def test_a_silo_stays_where_it_is_connected_until_that_connection_is_gone() -> None:
    found = members(north="ab")
    refused = found.join_sub_coordinator("south", {"b": 10, "c": 10}, {})
    assert refused == {"b": ELSEWHERE.format("b", "through 'north'")}
    assert via(found) == ["north", "north", "south"]
    with pytest.raises(RefusedError, match=re.escape(ELSEWHERE.format("a", "through 'north'"))) as direct:
        found.join("a", 10)
    assert direct.value.status == 409
    found.mark_late("ab")
    found.join("a", 10)
    assert found.join_sub_coordinator("south", {"b": 10, "c": 10}, {}) == {}
    assert via(found) == [None, "south", "south"]
    again = found.join_sub_coordinator("north", {"a": 10}, {})
    assert again == {"a": ELSEWHERE.format("a", "directly, not through 'north'")}


def test_a_connection_is_gone_after_a_minute_of_silence_unless_somebody_there_computes() -> None:
    found = members(north="ab")
    for status in found.silos.values():
        status.last_seen = time.time() - CONTACT_SECONDS - 1
    found.silos["b"].state = "working"
    with pytest.raises(RefusedError, match="connected elsewhere"):
        found.join("a", 10)
    found.silos["b"].state = "answered"
    found.join("a", 10)
    assert via(found) == [None, "north", None]


def test_a_silo_that_is_sent_away_is_refused_with_the_reason_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = members(north="ab")
    found.join("c", 10)
    found.send_away({"a": "silo 'a' is elsewhere", "c": "silo 'c' is elsewhere"})
    assert list(found.present()) == ["b"]
    with pytest.raises(RefusedError, match="silo 'c' is elsewhere"):
        found.join("c", 10)
    both = {"a": 10, "b": 10}
    assert found.join_sub_coordinator("north", both, {}) == {"a": "silo 'a' is elsewhere"}
    now = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now + SENT_AWAY_SECONDS)
    found.join("c", 10)
    assert found.join_sub_coordinator("north", both, {}) == {}


def test_silos_that_a_sub_coordinator_no_longer_names_are_lost_for_its_reason() -> None:
    found = members(north="abc")
    found.join_sub_coordinator("north", {"b": 10}, {"a": "switched off"})
    assert via(found) == [None, "north", None]
    assert found.reasons("abc") == {"a": "switched off", "c": "did not reply in time"}
    assert list(found.present()) == ["b"]


def test_a_silo_that_joins_itself_belongs_to_none() -> None:
    found = members(north="ab")
    found.mark_late("a")
    found.join("a", 10)
    assert via(found) == [None, "north", None]


def test_a_sub_coordinator_without_silos_is_removed_unless_it_was_set_aside() -> None:
    found = members(north="a")
    found.mark_late("a")
    found.join_sub_coordinator("south", {"a": 10, "b": 10}, {})
    assert not found.knows("north")
    for _ in range(STRIKES):
        found.strike("south", "its body is nonsense")
    found.join_sub_coordinator("west", {"c": 10}, {})
    assert found.knows("south")
    with pytest.raises(RefusedError, match="'south' was set aside: its body is nonsense") as refused:
        found.join_sub_coordinator("south", {"a": 10}, {})
    assert refused.value.status == 403


def test_a_sub_coordinator_that_has_no_silo_yet_learns_that_it_may_join_and_changes_nothing() -> None:
    found = members(north="ab")
    before = found.revision
    found.join_sub_coordinator("north", {}, {})
    found.join_sub_coordinator("south", {}, {})
    assert (via(found), found.revision, found.knows("south")) == (["north", "north", None], before, False)
    with pytest.raises(RefusedError, match="'a' is a silo of this run"):
        found.join_sub_coordinator("a", {}, {})


def test_contact_with_a_sub_coordinator_is_contact_with_its_silos() -> None:
    found = members(north="ab")
    found.mark_seen("north", received=5, sent=7)
    assert [silo.last_seen is not None for silo in found.silos.values()] == [True, True, False]
    assert (found.sub_coordinators["north"].bytes_received, found.silos["a"].bytes_received) == (5, 0)


def test_too_few_silos_that_are_not_set_aside_end_the_wait_with_a_sentence() -> None:
    queue = queue_of(remote(("a", "b")))
    queue.leave_out_of_run({"a": "its gradient is long"})
    with pytest.raises(SilosLostError, match=r"a was set aside \(a: its gradient is long\).*min_silos=2"):
        queue.wait_for_silos(2, 60)


def test_a_silo_that_joins_with_other_rows_than_it_summarised_is_refused() -> None:
    found = members()
    found.summary_rows = {"a": (1000, 1), "b": (10**6, 1)}
    for silo, examples in (("a", 1002), ("a", 10**6), ("b", 700)):
        with pytest.raises(
            RefusedError, match=f"its summary has .* rows, and it joins with {examples} examples"
        ):
            found.join(silo, examples)
    for examples in (1000, 700, 100):
        found.join("a", examples)
    found.join("c", 5)
