"""Which sub-coordinator replies for a silo: the one that announced it last, or none."""

from __future__ import annotations

from fedilc.runtimes.rest.status import Carriers, SiloStatus


def carriers() -> Carriers:
    return Carriers({name: SiloStatus(name) for name in "abc"})


def test_a_silo_belongs_to_the_sub_coordinator_that_announced_it_last() -> None:
    found = carriers()
    assert found.announce("north", "ab") == ()
    found.announce("south", "bc")
    assert (found.leaves("north"), found.leaves("south")) == (("a",), ("b", "c"))
    assert found.silos["b"].via == "south"


def test_silos_that_are_no_longer_announced_are_returned() -> None:
    found = carriers()
    found.announce("north", "abc")
    assert found.announce("north", "b") == ("a", "c")


def test_a_silo_that_joins_itself_belongs_to_none() -> None:
    found = carriers()
    found.announce("north", "ab")
    found.release("a")
    assert found.leaves("north") == ("b",)
    assert found.silos["a"].via is None


def test_a_sub_coordinator_without_silos_is_forgotten_unless_it_was_set_aside() -> None:
    found = carriers()
    found.announce("north", "a")
    found.announce("south", "ab")
    assert "north" not in found
    found.states["south"].state = "set aside"
    found.announce("west", "abc")
    assert "south" in found
