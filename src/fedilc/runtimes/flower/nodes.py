"""Keep track of Flower's nodes, which come and go, and of the silo that each has."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pydantic import Field

from fedilc.config.section import Section
from fedilc.errors import ConfigError, ProtocolError
from fedilc.federation.json_files import parse_json
from fedilc.runtimes.flower import logger
from fedilc.runtimes.flower.messaging import NodeReply, exchange, make_content, read_about
from fedilc.runtimes.remote.manifest import read_received

if TYPE_CHECKING:
    from flwr.serverapp import Grid

QUERY = "query.silo"
_POLL_SECONDS = 1.0
_MAX_QUERIES = 3


class NodeSilo(Section):
    """A node's description of its silo; `partition` is the silo's place in the order of silos."""

    partition: int = Field(ge=0)
    partitions: int | None = Field(None, ge=1, description="how many nodes the federation has, if known")
    name: str
    examples: int = Field(ge=1)
    inputs: list[int] | dict[str, list[int]] | list[list[int]]
    whole: list[bool] = Field(default_factory=list, description="whether each input is whole numbers")


class NodeRegistry:
    """The nodes that are connected, by partition.

    Attributes:
        silos: the description of each node's silo.
        nodes: the node of each partition.
        problems: why a node cannot be used.
        failures: how often a node has failed since it connected or last completed a round.
    """

    def __init__(self, grid: Grid, seed: int, timeout: float) -> None:
        if not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
            raise ConfigError(
                f"timeout={timeout!r} is not a number of seconds above 0; every exchange needs a timeout"
            )
        self.grid = grid
        self.seed = seed
        self.timeout = timeout
        self.silos: dict[int, NodeSilo] = {}
        self.nodes: dict[int, int] = {}
        self.problems: dict[int, str] = {}
        self.failures: dict[int, int] = {}
        self._queries: dict[int, int] = {}
        self._spare: dict[int, int] = {}

    @property
    def partitions(self) -> int | None:
        """Return how many partitions there will be, if the nodes know."""
        known = [silo.partitions for silo in self.silos.values() if silo.partitions is not None]
        return max(known) if known else None

    def wait(self, enough: Callable[[], bool]) -> None:
        """Refresh until there are enough nodes, all have replied or permanently failed, or the time is up."""
        deadline = time.monotonic() + self.timeout
        while True:
            self.refresh(max(deadline - time.monotonic(), _POLL_SECONDS))
            failed = [node for node in self.problems if self._queries[node] >= _MAX_QUERIES]
            replied = len(self.silos) + len(failed)
            complete = self.partitions is not None and replied >= self.partitions
            if enough() or complete or time.monotonic() >= deadline:
                return
            time.sleep(_POLL_SECONDS)

    def refresh(self, timeout: float) -> None:
        """Remove nodes that have left, and ask new ones which silo they have."""
        connected = {int(node) for node in self.grid.get_node_ids()}
        for known in (self._queries, self.problems, self.failures):
            for node in known.keys() - connected:
                del known[node]
        self._spare = {place: node for place, node in self._spare.items() if node in connected}
        for partition in [place for place, node in self.nodes.items() if node not in connected]:
            if not self.replace(partition):
                del self.nodes[partition], self.silos[partition]
                # A partition is free: query the nodes with problems again.
                self._queries.update(dict.fromkeys(self.problems, 0))
        new = [node for node in sorted(connected) if self._is_to_be_asked(node)]
        if new:
            content = make_content({"seed": str(self.seed)})
            replies = exchange(self.grid, QUERY, dict.fromkeys(new, content), timeout)
            for reply in sorted(replies, key=lambda reply: reply.node):
                self._queries[reply.node] = self._queries.get(reply.node, 0) + 1
                self._add(reply)

    def _is_to_be_asked(self, node: int) -> bool:
        """Return whether a node has not said which silo it has, and may still do so."""
        queries = self._queries.get(node, 0)
        is_spare = node in self._spare.values()
        return not queries or (node in self.problems and queries < _MAX_QUERIES and not is_spare)

    def replace(self, partition: int) -> bool:
        """Give a partition to the spare node that has the same silo; return whether there is one.

        Flower may see a restarted node as a new one, and lists the old one as connected until it has been
        silent for a while.
        """
        if partition not in self._spare:
            return False
        node = self._spare.pop(partition)
        self.nodes[partition] = node
        self.problems.pop(node, None)
        logger.info("partition-id %d now belongs to node %s", partition, node)
        return True

    def _add(self, reply: NodeReply) -> None:
        try:
            silo = _described(reply)
        except ProtocolError as error:
            self.problems[reply.node] = str(error)
            if reply.final:
                self._queries[reply.node] = _MAX_QUERIES
            logger.warning("node %s has no silo: %s", reply.node, error)
            return
        self.problems.pop(reply.node, None)
        if silo.partition in self.nodes:
            text = f"partition-id {silo.partition} already belongs to node {self.nodes[silo.partition]}"
            self.problems[reply.node] = text
            if silo == self.silos[silo.partition]:
                self._spare[silo.partition] = reply.node
            logger.warning("node %s is not used: %s", reply.node, text)
            return
        self.silos[silo.partition], self.nodes[silo.partition] = silo, reply.node


def _described(reply: NodeReply) -> NodeSilo:
    if reply.content is None:
        raise ProtocolError(reply.problem)
    try:
        values = parse_json(read_about(reply.content).get("silo", ""))
    except ValueError:
        values = None
    return read_received(NodeSilo, values, "its description of its silo")
