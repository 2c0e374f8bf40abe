"""The protocol, written once: steps of a round, messages, server, client."""

from fedilc.federation.client import SiloClient
from fedilc.federation.program import Program
from fedilc.federation.protocol import AggregatedReply, Reply, Request
from fedilc.federation.server import Record, Server
from fedilc.storage.run_folder import RunFolder

__all__ = [
    "AggregatedReply",
    "Program",
    "Record",
    "Reply",
    "Request",
    "RunFolder",
    "Server",
    "SiloClient",
]
