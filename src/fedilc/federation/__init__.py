"""The protocol, written once: steps of a round, messages, server, client."""

from fedilc.federation.client import SiloClient
from fedilc.federation.program import Program
from fedilc.federation.protocol import AggregatedReply, Reply, Request
from fedilc.federation.server import Record, Server

__all__ = [
    "AggregatedReply",
    "Program",
    "Record",
    "Reply",
    "Request",
    "Server",
    "SiloClient",
]
