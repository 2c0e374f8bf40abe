"""Send requests to silos on Flower nodes, and train over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedilc.errors import ProtocolError, SilosLostError
from fedilc.federation import Reply, Request, Runtime
from fedilc.runtimes.flower import logger
from fedilc.runtimes.flower.messaging import NodeReply, exchange, make_content, read_body
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.open_request import OpenRequest, RequestOpener
from fedilc.runtimes.remote.run import RemoteRun, RoundLog
from fedilc.training.callbacks import Callback
from fedilc.training.result import Result

if TYPE_CHECKING:
    from fedilc.runtimes.flower.nodes import NodeRegistry

STEP = "step"
_MAX_FAILURES = 3


class FlowerRuntime(Runtime):
    """The runtime over Flower's nodes; it waits for each reply at most the registry's timeout.

    The silo of partition k is the k-th of the manifest. A node that fails three times is set aside until it
    is restarted. The weights are sent with every request, because the process that replies may be new.
    """

    def __init__(self, registry: NodeRegistry, manifest: Manifest, min_silos: int) -> None:
        self.registry = registry
        self.manifest = manifest
        self.silos = tuple(manifest.silos)
        self.min_silos = min_silos
        self._text = manifest.model_dump_json()
        self._started = False
        self._opener = RequestOpener(manifest)

    def present(self) -> tuple[str, ...]:
        """Return the silos to ask in the next round; wait for all before the first, for `min_silos` later."""
        wanted = self.min_silos if self._started else len(self.silos)
        self.registry.wait(lambda: len(self._available()) >= wanted)
        self._started = True
        available = self._available()
        if len(available) < self.min_silos:
            raise SilosLostError(self._too_few(available))
        return available

    def _available(self) -> tuple[str, ...]:
        return tuple(
            silo
            for place, silo in enumerate(self.silos)
            if place in self.registry.nodes
            and self.registry.failures.get(self.registry.nodes[place], 0) < _MAX_FAILURES
        )

    def _too_few(self, available: tuple[str, ...]) -> str:
        missing = [
            f"{silo!r} (partition-id {place})"
            for place, silo in enumerate(self.silos)
            if place not in self.registry.nodes
        ]
        text = f"{len(available)} of {len(self.silos)} silos are there, fewer than min_silos={self.min_silos}"
        if self.registry.problems:
            text += f"; one node reports: {next(iter(self.registry.problems.values()))}"
        partitions = self.registry.partitions
        if partitions is not None and partitions < self.min_silos:
            text += (
                f"; the federation has {partitions} nodes, so give a simulation --federation-config "
                f"'num-supernodes={len(self.silos)}'"
            )
        elif missing:
            text += f"; start a SuperNode for {', '.join(missing[:5])}, or lower min_silos, and run again"
        return text

    def ask(self, request: Request) -> Iterator[Reply]:
        """Send the request to the silos' nodes; yield replies as they come."""
        open_request = self._opener.open(request)
        body = open_request.body("")
        asked: dict[int, str] = {}
        for place, silo in enumerate(self.silos):
            if silo in request.asked and place in self.registry.nodes:
                asked[self.registry.nodes[place]] = silo
        contents = {
            node: make_content({"manifest": self._text, "silo": silo}, body) for node, silo in asked.items()
        }
        kind, group = f"train.{STEP}", str(request.round)
        for node_reply in exchange(self.registry.grid, kind, contents, self.registry.timeout, group):
            reply = self._read(open_request, asked[node_reply.node], node_reply)
            if reply is not None:
                yield reply

    def _read(self, open_request: OpenRequest, silo: str, node_reply: NodeReply) -> Reply | None:
        """Return a silo's reply; if it is lost to this round, log why and return None."""
        problem = node_reply.problem
        if node_reply.content is not None:
            try:
                reply = open_request.read(read_body(node_reply.content, open_request.max_bytes), silo)
                if open_request.step.completes:
                    self.registry.failures.pop(node_reply.node, None)
                return reply
            except ProtocolError as error:
                problem = str(error)
        failures = self.registry.failures.get(node_reply.node, 0) + 1
        self.registry.failures[node_reply.node] = failures
        request = open_request.request
        logger.warning("silo %r is lost to round %d (%s): %s", silo, request.round, request.step, problem)
        if not self.registry.replace(self.silos.index(silo)) and failures == _MAX_FAILURES:
            logger.warning("silo %r failed %d times and is set aside", silo, _MAX_FAILURES)
        return None


def train_on_nodes(
    registry: NodeRegistry, run: RemoteRun, out: Path | None, callbacks: Sequence[Callback] = ()
) -> Result:
    """Train over the nodes of a registry; continue the run in `out`, if it is this one."""
    training = run.training(FlowerRuntime(registry, run.manifest, run.needed))
    log = RoundLog(lambda line: logger.info("fedilc: %s", line))
    return run.train(training, "flower", out, [log, *callbacks])
