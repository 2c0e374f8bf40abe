"""One exchange over Flower's grid: a message to each node, and what comes back until the time is up.

Flower's own `send_and_receive` sleeps three seconds between looks and keeps all replies until the last;
here replies are handed on as they come.
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

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_LONGEST_REASON = 400


@dataclass(frozen=True)
class Answer:
    """What a node said: records, or why there are none; `final` if it is of no use to ask again."""

    node: int
    content: RecordDict | None
    problem: str = ""
    final: bool = False


def make_content(about: Mapping[str, str], body: bytes | None = None) -> RecordDict:
    """Texts and a body as records; the body is an array of bytes, which Flower sends in parts."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    records: dict[str, Any] = {"about": ConfigRecord(dict(about))}
    if body is not None:
        array = Array(dtype="uint8", shape=(len(body),), stype="safetensors", data=body)
        records["body"] = ArrayRecord({"message": array})
    return RecordDict(records)


def read_about(content: RecordDict) -> dict[str, str]:
    """The texts of a message."""
    record = content.config_records.get("about")
    if record is None or not all(isinstance(value, str) for value in record.values()):
        raise ProtocolError("the message is not one of fedilc's; both sides need fedilc's apps")
    return dict(record)


def read_body(content: RecordDict, most: int | None = None) -> bytes:
    """The bytes of a message, unless there are more than `most`."""
    record = content.array_records.get("body")
    if record is None or "message" not in record:
        raise ProtocolError("the message has no body; both sides need fedilc's apps")
    body: bytes = record["message"].data
    if most is not None and len(body) > most:
        raise ProtocolError(f"the message has {len(body)} bytes, more than the {most} that it may have")
    return body


def exchange(
    grid: Grid, kind: str, contents: Mapping[int, RecordDict], timeout: float, group: str = ""
) -> Iterator[Answer]:
    """Send each node its records; yield an answer for each, those that did not come at the end.

    Every reply is fetched by itself: Flower waits minutes for one whose sender died while sending it, and
    that must not hold up the others. Replies are known by the message they reply to, since an error for a
    lost node names another sender.
    """
    from flwr.app import Message

    messages = [
        Message(content, node, kind, ttl=timeout, group_id=group) for node, content in contents.items()
    ]
    deadline = time.monotonic() + timeout
    taken = {str(name) for name in grid.push_messages(messages) if name}
    waiting = {str(message.metadata.message_id): int(message.metadata.dst_node_id) for message in messages}
    for name in waiting.keys() - taken:
        yield Answer(waiting.pop(name), None, "the SuperLink did not take the message for it")
    replies: SimpleQueue[tuple[str, Message | Exception]] = SimpleQueue()
    over = threading.Event()
    for name in waiting:
        threading.Thread(target=_fetch, args=(grid, name, replies, over), daemon=True).start()
    try:
        while waiting:
            name, found = replies.get(timeout=max(deadline - time.monotonic(), 0.0))
            if isinstance(found, Exception):
                raise found
            yield _answer(waiting.pop(name), found)
    except Empty:
        for node in waiting.values():
            yield Answer(node, None, f"it did not answer within {timeout:g} s", final=True)
    finally:
        over.set()


def _fetch(
    grid: Grid, name: str, replies: SimpleQueue[tuple[str, Message | Exception]], over: threading.Event
) -> None:
    """Look for one reply until it is there, or nobody waits for it any more."""
    pause = _FIRST_PAUSE
    while not over.is_set():
        try:
            found = list(grid.pull_messages([name]))
        except Exception as error:
            replies.put((name, error))
            return
        if found:
            replies.put((name, found[0]))
            return
        over.wait(pause)
        pause = min(1.3 * pause, _LONGEST_PAUSE)


def _answer(node: int, reply: Message) -> Answer:
    if reply.has_error():
        reason = " ".join(str(reply.error.reason or "it gave no reason").split())
        if len(reason) > _LONGEST_REASON:
            reason = "... " + reason[-_LONGEST_REASON:]
        return Answer(node, None, f"Flower's error {reply.error.code}: {reason}")
    try:
        problem = read_about(reply.content).get("problem", "")
    except ProtocolError as error:
        return Answer(node, None, str(error))
    return Answer(node, None, problem, final=True) if problem else Answer(node, reply.content)
