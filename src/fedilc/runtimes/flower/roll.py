"""Who is there: nodes come and go, and each says once which silo it has."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError

from fedilc.errors import ProtocolError
from fedilc.runtimes.flower.engine import logger
from fedilc.runtimes.flower.exchange import Answer, exchange, make_content, read_about
from fedilc.sections import Section

if TYPE_CHECKING:
    from flwr.serverapp import Grid

QUERY = "query.silo"
_TICK_SECONDS = 1.0


class Described(Section):
    """What a node says of itself; `partition` is the place of its silo in the order of silos."""

    partition: int = Field(ge=0)
    partitions: int | None = Field(None, ge=1, description="how many nodes the federation has, if known")
    name: str
    examples: int = Field(ge=1)
    inputs: list[int]
    whole: bool = Field(False, description="whether the inputs are whole numbers")


class Roll:
    """The nodes that are there, by partition."""

    def __init__(self, grid: Grid, seed: int, timeout: float) -> None:
        self.grid = grid
        self.seed = seed
        self.timeout = timeout
        self.members: dict[int, Described] = {}
        self.nodes: dict[int, int] = {}
        self.problems: dict[int, str] = {}
        self._asked: set[int] = set()
        self._spare: dict[int, tuple[int, Described]] = {}

    @property
    def partitions(self) -> int | None:
        """How many partitions there are to be, where the nodes know."""
        known = [member.partitions for member in self.members.values() if member.partitions is not None]
        return max(known) if known else None

    def wait(self, enough: Callable[[], bool]) -> None:
        """Call the roll until there are enough, all have answered, or the time is up."""
        deadline = time.monotonic() + self.timeout
        while True:
            self.call(max(deadline - time.monotonic(), _TICK_SECONDS))
            answered = len(self.members) + len(self.problems)
            complete = self.partitions is not None and answered >= self.partitions
            if enough() or complete or time.monotonic() >= deadline:
                return
            time.sleep(_TICK_SECONDS)

    def call(self, patience: float) -> None:
        """Let go of nodes that have left, and ask those that are new which silo they have."""
        there = {int(node) for node in self.grid.get_node_ids()}
        self._asked &= there
        self.problems = {node: text for node, text in self.problems.items() if node in there}
        self._spare = {place: spare for place, spare in self._spare.items() if spare[0] in there}
        for partition in [place for place, node in self.nodes.items() if node not in there]:
            del self.nodes[partition], self.members[partition]
            self.replace(partition)
        new = sorted(there - self._asked)
        self._asked |= set(new)
        if new:
            content = make_content({"seed": str(self.seed)})
            answers = exchange(self.grid, QUERY, dict.fromkeys(new, content), patience)
            for answer in sorted(answers, key=lambda answer: answer.node):
                self._enter(answer)

    def replace(self, partition: int) -> bool:
        """Give a partition to the other node that says it has it, if there is one.

        A node that was started again may be a new one to Flower, which counts the old one among those that
        are there until it has been silent for a while.
        """
        if partition not in self._spare:
            return False
        node, member = self._spare.pop(partition)
        self.members[partition], self.nodes[partition] = member, node
        self.problems.pop(node, None)
        logger.info("partition-id %d is now that of node %s", partition, node)
        return True

    def _enter(self, answer: Answer) -> None:
        try:
            member = _described(answer)
        except ProtocolError as error:
            self.problems[answer.node] = str(error)
            logger.warning("node %s has no silo: %s", answer.node, error)
            return
        if member.partition in self.nodes:
            text = f"partition-id {member.partition} is already that of node {self.nodes[member.partition]}"
            self.problems[answer.node] = text
            self._spare[member.partition] = answer.node, member
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
