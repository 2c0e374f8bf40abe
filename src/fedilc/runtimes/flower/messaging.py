"""Send a message to each node over Flower's grid, and yield the replies as they come, until a timeout.

Flower's own `send_and_receive` polls every three seconds and keeps all replies until the last.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from fedilc.errors import ProtocolError

if TYPE_CHECKING:
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid

_FIRST_POLL_SECONDS = 0.02
_MAX_POLL_SECONDS = 0.5
_MAX_REASON_LENGTH = 400


@dataclass(frozen=True)
class NodeReply:
    """A node's records, or why there are none; `final` if asking again is of no use."""

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
        raise ProtocolError("the message is not one of fedilc's; run fedilc's apps on both sides")
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
    """Send each node its records; yield one reply per node, those that did not come at the end.

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
