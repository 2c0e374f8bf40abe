"""Sub-coordinators: which of them answers for which silos now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedilc.runtimes.rest.status import SiloState


class Carriers:
    """The sub-coordinators that have joined, and the silos that each of them has at this moment.

    A silo belongs to the one that told of it last, and to none once it has joined itself.
    """

    def __init__(self, silos: Mapping[str, SiloState]) -> None:
        self.silos = silos
        self.states: dict[str, SiloState] = {}
        self._of: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.states

    def leaves(self, name: str) -> tuple[str, ...]:
        """The silos that a sub-coordinator has now; none if this is no sub-coordinator."""
        return tuple(silo for silo, carrier in self._of.items() if carrier == name)

    def tell(self, name: str, leaves: Iterable[str]) -> tuple[str, ...]:
        """Take note of all silos that a sub-coordinator has; return those that it has no longer."""
        self.states.setdefault(name, SiloState(name, "waiting"))
        now = dict.fromkeys(leaves)
        gone = tuple(silo for silo in self.leaves(name) if silo not in now)
        for silo in gone:
            del self._of[silo]
        for silo in now:
            self._of[silo] = name
            self.silos[silo].via = name
        for other in [other for other in self.states if other != name and not self.leaves(other)]:
            if self.states[other].state != "set aside":
                del self.states[other]
        return gone

    def release(self, silo: str) -> None:
        """A silo joins itself."""
        self._of.pop(silo, None)
        self.silos[silo].via = None
