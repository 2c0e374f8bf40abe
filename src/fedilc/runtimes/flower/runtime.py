"""Train over silos on Flower nodes: messages over the grid, nodes that come and go, and the runtime."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from pydantic import Field

from fedilc.data.sources import Section
from fedilc.errors import ConfigError, ProtocolError, SilosLostError
from fedilc.federation import Reply, Request
from fedilc.runtimes.base import Runtime
from fedilc.runtimes.flower import logger
from fedilc.runtimes.remote.manifest import Manifest, read_received
from fedilc.runtimes.remote.open_request import OpenRequest, RequestOpener
from fedilc.runtimes.remote.run import RemoteRun, RoundLog
from fedilc.storage.files import parse_json
from fedilc.training.callbacks import Callback
from fedilc.training.result import Result

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid

_FIRST_POLL_SECONDS = 0.02  # between two looks for a reply; the pause grows
_MAX_POLL_SECONDS = 0.5
_MAX_REASON_LENGTH = 400
QUERY = "query.silo"
STEP = "step"
_POLL_SECONDS = 1.0  # between two looks for new nodes
_MAX_QUERIES = 3  # after which a node that cannot say which silo it has is not asked again
_MAX_FAILURES = 3  # after which a node is set aside until it is restarted


def train_on_nodes(
    registry: NodeRegistry, run: RemoteRun, out: Path | None, callbacks: Sequence[Callback] = ()
) -> Result:
    """Train over the nodes of a registry; continue the run in `out`, if it is this one."""
    training = run.training(FlowerRuntime(registry, run.manifest, run.needed))
    log = RoundLog(lambda line: logger.info("fedilc: %s", line))
    return run.train(training, "flower", out, [log, *callbacks])


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
        """Return the silos to ask in the next round.

        Wait for all silos before the first round, and for `min_silos` before later ones.
        """
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
        text = f"only {len(available)} of {len(self.silos)} silos are there, and min_silos={self.min_silos}"
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


class NodeSilo(Section):
    """A node's description of its silo; `partition` is the silo's place in the order of silos."""

    partition: int = Field(ge=0)
    partitions: int | None = Field(None, ge=1, description="how many nodes the federation has, if known")
    name: str
    examples: int = Field(ge=1)
    inputs: list[int] | dict[str, list[int]] | list[list[int]]
    whole: list[bool] = Field(default_factory=list, description="whether each input holds integers")


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


@dataclass(frozen=True)
class NodeReply:
    """A node's records, or why there are none; `final` if it is useless to ask again."""

    node: int
    content: RecordDict | None
    problem: str = ""
    final: bool = False


def make_content(about: Mapping[str, str], body: bytes | None = None) -> RecordDict:
    """Return texts and a body as records; the body is an array of bytes, which Flower sends in parts."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    records: dict[str, Any] = {"about": ConfigRecord(dict(about))}
    if body is not None:
        array = Array(dtype="uint8", shape=(len(body),), stype="safetensors", data=body)
        records["body"] = ArrayRecord({"message": array})
    return RecordDict(records)


def read_about(content: RecordDict) -> dict[str, str]:
    """Return the texts of a message."""
    record = content.config_records.get("about")
    if record is None or not all(isinstance(value, str) for value in record.values()):
        raise ProtocolError("the message does not come from fedilc; run fedilc's apps on both sides")
    return dict(record)


def read_body(content: RecordDict, max_bytes: int | None = None) -> bytes:
    """Return the bytes of a message; raise if there are more than `max_bytes`."""
    record = content.array_records.get("body")
    if record is None or "message" not in record:
        raise ProtocolError("the message has no body; run fedilc's apps on both sides")
    body: bytes = record["message"].data
    if max_bytes is not None and len(body) > max_bytes:
        raise ProtocolError(f"the message has {len(body)} bytes, more than the {max_bytes} allowed")
    return body


def exchange(
    grid: Grid, kind: str, contents: Mapping[int, RecordDict], timeout: float, group: str = ""
) -> Iterator[NodeReply]:
    """Send each node its records; yield one reply per node, missing ones at the end.

    Every reply is fetched on its own thread: Flower waits minutes for one whose sender died while sending it,
    and that must not delay the others. A reply is matched by the message it replies to, because the error for
    a lost node names another sender.
    """
    from flwr.app import Message

    messages = [
        Message(content, node, kind, ttl=timeout, group_id=group) for node, content in contents.items()
    ]
    deadline = time.monotonic() + timeout
    accepted = {str(name) for name in grid.push_messages(messages) if name}
    waiting = {str(message.metadata.message_id): int(message.metadata.dst_node_id) for message in messages}
    for name in waiting.keys() - accepted:
        yield NodeReply(waiting.pop(name), None, "the SuperLink did not accept the message for it")
    replies: SimpleQueue[tuple[str, Message | Exception]] = SimpleQueue()
    over = threading.Event()
    for name in waiting:
        threading.Thread(target=_fetch, args=(grid, name, replies, over), daemon=True).start()
    try:
        while waiting:
            name, reply = replies.get(timeout=max(deadline - time.monotonic(), 0.0))
            if isinstance(reply, Exception):
                raise reply
            yield _read(waiting.pop(name), reply)
    except Empty:
        for node in waiting.values():
            yield NodeReply(node, None, f"it did not reply within {timeout:g} s", final=True)
    finally:
        over.set()


def _fetch(
    grid: Grid, name: str, replies: SimpleQueue[tuple[str, Message | Exception]], over: threading.Event
) -> None:
    """Poll for one reply until it is there or `over` is set."""
    pause = _FIRST_POLL_SECONDS
    while not over.is_set():
        try:
            messages = list(grid.pull_messages([name]))
        except Exception as error:
            replies.put((name, error))
            return
        if messages:
            replies.put((name, messages[0]))
            return
        over.wait(pause)
        pause = min(1.3 * pause, _MAX_POLL_SECONDS)


def _read(node: int, reply: Message) -> NodeReply:
    if reply.has_error():
        reason = " ".join(str(reply.error.reason or "no reason given").split())
        if len(reason) > _MAX_REASON_LENGTH:
            reason = "... " + reason[-_MAX_REASON_LENGTH:]
        return NodeReply(node, None, f"Flower's error {reply.error.code}: {reason}")
    try:
        problem = read_about(reply.content).get("problem", "")
    except ProtocolError as error:
        return NodeReply(node, None, str(error))
    return NodeReply(node, None, problem, final=True) if problem else NodeReply(node, reply.content)
