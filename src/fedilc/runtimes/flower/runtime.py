"""The runtime that puts requests to silos on Flower nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedilc.errors import ProtocolError, SilosLostError
from fedilc.federation import Reply, Request, Runtime
from fedilc.runtimes.flower.engine import logger
from fedilc.runtimes.flower.messaging import Answer, exchange, make_content, read_body
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.open_request import Posted, Posting

if TYPE_CHECKING:
    from fedilc.runtimes.flower.nodes import Roll

STEP = "step"
_TIMES_FAILED = 3


class FlowerRuntime(Runtime):
    """Asks silos by Flower messages, and waits for each answer at most `timeout` seconds.

    The silo of partition k is the k-th of the manifest. A node that fails three times is set aside until it
    is started again. The weights travel with every request, because the process that answers may be new.
    """

    def __init__(self, roll: Roll, manifest: Manifest, min_silos: int) -> None:
        self.roll = roll
        self.manifest = manifest
        self.silos = tuple(manifest.silos)
        self.min_silos = min_silos
        self._text = manifest.model_dump_json()
        self._began = False
        self._posting = Posting(manifest)

    def present(self) -> tuple[str, ...]:
        """The silos to ask in the next round: at first all are waited for, later those that are needed."""
        wanted = self.min_silos if self._began else len(self.silos)
        self.roll.wait(lambda: len(self._there()) >= wanted)
        self._began = True
        there = self._there()
        if len(there) < self.min_silos:
            raise SilosLostError(self._too_few(there))
        return there

    def _there(self) -> tuple[str, ...]:
        return tuple(
            silo
            for place, silo in enumerate(self.silos)
            if place in self.roll.nodes and self.roll.failures.get(self.roll.nodes[place], 0) < _TIMES_FAILED
        )

    def _too_few(self, there: tuple[str, ...]) -> str:
        missing = [
            f"{silo!r} (partition-id {place})"
            for place, silo in enumerate(self.silos)
            if place not in self.roll.nodes
        ]
        text = f"{len(there)} of {len(self.silos)} silos are there, fewer than min_silos={self.min_silos}"
        if self.roll.problems:
            text += f"; a node says: {next(iter(self.roll.problems.values()))}"
        partitions = self.roll.partitions
        if partitions is not None and partitions < self.min_silos:
            text += (
                f"; the federation has {partitions} nodes, so give a simulation --federation-config "
                f"'num-supernodes={len(self.silos)}'"
            )
        elif missing:
            text += f"; start a SuperNode for {', '.join(missing[:5])}, or lower min_silos, and run again"
        return text

    def ask(self, request: Request) -> Iterator[Reply]:
        """Send the request to the silos' nodes; yield answers as they come."""
        posted = self._posting.post(request)
        body = posted.body("")
        asked: dict[int, str] = {}
        for place, silo in enumerate(self.silos):
            if silo in request.asked and place in self.roll.nodes:
                asked[self.roll.nodes[place]] = silo
        contents = {
            node: make_content({"manifest": self._text, "silo": silo}, body) for node, silo in asked.items()
        }
        kind, group = f"train.{STEP}", str(request.round)
        for answer in exchange(self.roll.grid, kind, contents, self.roll.timeout, group):
            reply = self._reply(posted, asked[answer.node], answer)
            if reply is not None:
                yield reply

    def _reply(self, posted: Posted, silo: str, answer: Answer) -> Reply | None:
        """A silo's answer, or None where it is lost to this round; why is said."""
        problem = answer.problem
        if answer.content is not None:
            try:
                reply = posted.read(read_body(answer.content, posted.most_bytes), silo)
                if posted.step.completes:
                    self.roll.failures.pop(answer.node, None)
                return reply
            except ProtocolError as error:
                problem = str(error)
        failures = self.roll.failures.get(answer.node, 0) + 1
        self.roll.failures[answer.node] = failures
        request = posted.request
        logger.warning("silo %r is lost to round %d (%s): %s", silo, request.round, request.step, problem)
        if not self.roll.replace(self.silos.index(silo)) and failures == _TIMES_FAILED:
            logger.warning("silo %r failed %d times and is set aside", silo, _TIMES_FAILED)
        return None
