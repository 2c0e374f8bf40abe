"""Flower's grid with nodes in this process: real messages and a real ClientApp, and no network between."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

import pytest
from clinics import make_model, make_silo

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedilc[flower]'")

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedilc import Silo
from fedilc.federation.program import MATCHED, UPDATE
from fedilc.runtimes.flower import make_client_app
from fedilc.runtimes.flower.runtime import STEP, read_body
from fedilc.runtimes.remote.wire import read_header

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1
SUPERLINK, UNAVAILABLE = 1, 5


def asked_for(message: Message) -> str:
    """The step that a message asks for, or its type if it asks for none."""
    kind = message.metadata.message_type
    if kind != f"train.{STEP}":
        return kind
    body = read_body(message.content)
    return read_header(body, len(body))[1]["step"]


class NearGrid(Grid):
    """Nodes 100, 101, ... with partitions 0, 1, ...; some may be silent, or gone."""

    def __init__(self, app: ClientApp, nodes: int, **config: Any) -> None:
        self.app = app
        self.configs = {
            100 + place: {"partition-id": place, "num-partitions": nodes, **config} for place in range(nodes)
        }
        self.silent: set[int] = set()
        self.gone: set[int] = set()
        self.raising: dict[int, int] = {}
        self.sent: list[tuple[int, str]] = []
        self.replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None: ...

    def run(self) -> Any: ...

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise AssertionError("FedILC makes its messages itself, with Message(...)")

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise AssertionError("FedILC pulls replies as they come, and never waits for all of them at once")

    def get_node_ids(self) -> list[int]:
        return [node for node in self.configs if node not in self.gone]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Answer at once, but hand the answers out in another order, as a network does."""
        taken = []
        for message in messages:
            name = str(uuid4())
            message.metadata.__dict__["_message_id"] = name
            node = message.metadata.dst_node_id
            self.sent.append((node, asked_for(message)))
            taken.append(name)
            reply = self.answered(node, message)
            if reply is not None:
                self.replies[name] = reply
        return taken

    def answered(self, node: int, message: Message) -> Message | None:
        if node in self.silent:
            return None
        if node in self.gone:
            return self.unavailable(message)
        context = Context(7, node, dict(self.configs[node]), RecordDict(), {})
        if self.raising.get(node, 0) and asked_for(message) in (UPDATE, MATCHED):
            self.raising[node] -= 1
            return Message(Error(2, "RuntimeError: out of memory"), reply_to=message)
        return self.app(message, context)

    def unavailable(self, message: Message) -> Message:
        """As Flower says it: in the name of the SuperLink, not of the node."""
        reply = Message(Error(UNAVAILABLE, "Node Unavailable"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = SUPERLINK
        return reply

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """One reply at a time, the last asked first."""
        for name in reversed(list(message_ids)):
            if name in self.replies:
                return [self.replies.pop(name)]
        return []


def grid_of(nodes: int, make: Callable[..., Silo] = make_silo, **config: Any) -> NearGrid:
    """Return a grid whose nodes have the silos that `make` returns."""
    return NearGrid(make_client_app(make, make_model), nodes, **config)
