"""Who is there: nodes come and go, and each says once which silo it has."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from fedilc.config.section import Section
from fedilc.errors import ProtocolError
from fedilc.runtimes.flower.engine import logger
from fedilc.runtimes.flower.messaging import Answer, exchange, make_content, read_about

if TYPE_CHECKING:
    from flwr.serverapp import Grid

QUERY = "query.silo"
_TICK_SECONDS = 1.0
_TIMES_ASKED = 3


class Described(Section):
    """What a node says of itself; `partition` is the place of its silo in the order of silos."""

    partition: int = Field(ge=0)
    partitions: int | None = Field(None, ge=1, description="how many nodes the federation has, if known")
    name: str
    examples: int = Field(ge=1)
    inputs: list[int]
    whole: bool = Field(False, description="whether the inputs are whole numbers")


class Roll:
    """The nodes that are there, by partition.

    Attributes:
        failures: how often a node that is there has failed since it came or last gave a gradient.
    """

    def __init__(self, grid: Grid, seed: int, timeout: float) -> None:
        self.grid = grid
        self.seed = seed
        self.timeout = timeout
        self.members: dict[int, Described] = {}
        self.nodes: dict[int, int] = {}
        self.problems: dict[int, str] = {}
        self.failures: dict[int, int] = {}
        self._asked: dict[int, int] = {}
        self._spare: dict[int, int] = {}

    @property
    def partitions(self) -> int | None:
        """How many partitions there are to be, where the nodes know."""
        known = [member.partitions for member in self.members.values() if member.partitions is not None]
        return max(known) if known else None

    def wait(self, enough: Callable[[], bool]) -> None:
        """Call the roll until there are enough, all have answered for good, or the time is up."""
        deadline = time.monotonic() + self.timeout
        while True:
            self.call(max(deadline - time.monotonic(), _TICK_SECONDS))
            settled = [node for node in self.problems if self._asked[node] >= _TIMES_ASKED]
            answered = len(self.members) + len(settled)
            complete = self.partitions is not None and answered >= self.partitions
            if enough() or complete or time.monotonic() >= deadline:
                return
            time.sleep(_TICK_SECONDS)

    def call(self, patience: float) -> None:
        """Let go of nodes that have left, and ask those that are new which silo they have."""
        there = {int(node) for node in self.grid.get_node_ids()}
        for known in (self._asked, self.problems, self.failures):
            for node in known.keys() - there:
                del known[node]
        self._spare = {place: node for place, node in self._spare.items() if node in there}
        for partition in [place for place, node in self.nodes.items() if node not in there]:
            if not self.replace(partition):
                del self.nodes[partition], self.members[partition]
                self._ask_again()
        new = [node for node in sorted(there) if self._to_be_asked(node)]
        if new:
            content = make_content({"seed": str(self.seed)})
            answers = exchange(self.grid, QUERY, dict.fromkeys(new, content), patience)
            for answer in sorted(answers, key=lambda answer: answer.node):
                self._asked[answer.node] = self._asked.get(answer.node, 0) + 1
                self._enter(answer)

    def _to_be_asked(self, node: int) -> bool:
        """Whether a node has not said which silo it has, and may still do so."""
        times = self._asked.get(node, 0)
        standing_by = node in self._spare.values()
        return not times or (node in self.problems and times < _TIMES_ASKED and not standing_by)

    def replace(self, partition: int) -> bool:
        """Give a partition to the other node that has the same silo, if there is one.

        A node that was started again may be a new one to Flower, which counts the old one among those that
        are there until it has been silent for a while.
        """
        if partition not in self._spare:
            return False
        node = self._spare.pop(partition)
        self.nodes[partition] = node
        self.problems.pop(node, None)
        logger.info("partition-id %d is now that of node %s", partition, node)
        return True

    def _ask_again(self) -> None:
        """A partition is free: those that could not be used may have it."""
        for node in self.problems:
            self._asked[node] = 0

    def _enter(self, answer: Answer) -> None:
        try:
            member = _described(answer)
        except ProtocolError as error:
            self.problems[answer.node] = str(error)
            if answer.final:
                self._asked[answer.node] = _TIMES_ASKED
            logger.warning("node %s has no silo: %s", answer.node, error)
            return
        self.problems.pop(answer.node, None)
        if member.partition in self.nodes:
            text = f"partition-id {member.partition} is already that of node {self.nodes[member.partition]}"
            self.problems[answer.node] = text
            if member == self.members[member.partition]:
                self._spare[member.partition] = answer.node
            logger.warning("node %s is not used: %s", answer.node, text)
            return
        self.members[member.partition], self.nodes[member.partition] = member, answer.node


def _described(answer: Answer) -> Described:
    if answer.content is None:
        raise ProtocolError(answer.problem)
    try:
        return Described.model_validate_json(read_about(answer.content).get("silo", ""))
    except ValidationError as error:
        raise ProtocolError(f"it describes no silo: {error.errors()[0]['msg']}") from error
