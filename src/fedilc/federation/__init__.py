"""The protocol, written once: steps of a round, messages, server, client, run folder."""

from fedilc.federation.client import SiloClient
from fedilc.federation.messages import AggregatedReply, Reply, Request
from fedilc.federation.program import Program
from fedilc.federation.run_folder import RunFolder
from fedilc.federation.runtime import Runtime
from fedilc.federation.server import Record, Server

__all__ = [
    "AggregatedReply",
    "Program",
    "Record",
    "Reply",
    "Request",
    "RunFolder",
    "Runtime",
    "Server",
    "SiloClient",
]
