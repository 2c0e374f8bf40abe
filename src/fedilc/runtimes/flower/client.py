"""The ClientApp: a node's silo, its own network, and answers to what the ServerApp asks.

In a deployment every message may meet a new process; then silo, network and forward pass are made again.
Where the process lives on, as in a simulation, they are kept.
"""

from __future__ import annotations

import inspect
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pooch
from torch import nn

from fedilc.data import Silo
from fedilc.errors import ConfigError, DataError, FedILCError, ProtocolError
from fedilc.federation.client import SiloClient
from fedilc.gradients.forward import KEPT_BYTES
from fedilc.runtimes.flower.engine import require_flower
from fedilc.runtimes.flower.messaging import make_content, read_about, read_body
from fedilc.runtimes.flower.runtime import STEP
from fedilc.runtimes.remote.client import make_client
from fedilc.runtimes.remote.manifest import Manifest, read_manifest
from fedilc.runtimes.remote.user_code import call_user_code, find_function
from fedilc.runtimes.remote.wire import pack_reply, unpack_request

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

MOST_CLIENTS = 16
_clients: OrderedDict[tuple[str, int, str], SiloClient] = OrderedDict()


def make_client_app(
    make_silo: Callable[..., Silo], make_model: Callable[[], nn.Module] | None = None, device: str = "auto"
) -> ClientApp:
    """A ClientApp for silos of one's own.

    Args:
        make_silo: gives the `fedilc.Silo` of a partition, called with `partition_id`; and with the run's
            `seed` too, if it has an argument of that name. A node that names a function of its own with
            `--node-config 'make-silo="my_module:make_silo"'` uses that one.
        make_model: gives the network, where it is not one of fedilc's; the weights come with each message.
        device: "auto" (a GPU if there is one), "cpu", "cuda", ...
    """
    require_flower()
    from flwr.clientapp import ClientApp

    answering = Answering(make_silo, make_model, device)
    app = ClientApp()
    app.query("silo")(answering.describe)
    app.train(STEP)(answering.answer)
    return app


@dataclass(frozen=True)
class Answering:
    """What a node answers. Its methods travel to a simulation's processes by name, without the cache."""

    make_silo: Callable[..., Silo]
    make_model: Callable[[], nn.Module] | None
    device: str

    def describe(self, message: Message, context: Context) -> Message:
        """Which silo this node has."""
        return _replying(message, lambda: self._description(message, context))

    def answer(self, message: Message, context: Context) -> Message:
        """The answer to a request of the round."""
        return _replying(message, lambda: self._answer(message, context))

    def _description(self, message: Message, context: Context) -> Any:
        partition = _partition(context.node_config)
        silo = self._silo(partition, _whole(read_about(message.content), "seed"), context.node_config)
        told = {
            "partition": partition,
            "partitions": context.node_config.get("num-partitions"),
            "name": silo.name,
            "examples": len(silo),
            "inputs": list(silo.x.shape[1:]),
            "whole": not silo.x.is_floating_point(),
        }
        return make_content({"silo": json.dumps(told)})

    def _answer(self, message: Message, context: Context) -> Any:
        about = read_about(message.content)
        try:
            manifest = read_manifest(json.loads(about.get("manifest", "")))
        except ValueError as error:
            raise ProtocolError(f"the manifest cannot be read: {error}") from error
        name = about.get("silo", "")
        asked = unpack_request(read_body(message.content), manifest, "", {})
        if asked.run != manifest.hash or name not in asked.request.silos:
            raise ProtocolError("the request is of another run than its manifest, or for other silos")
        client = self._client(manifest, name, context.node_config)
        kept = sum(client.computation.kept_bytes for client in _clients.values())
        reply = client.answer(asked.request, KEPT_BYTES - kept)
        return make_content({}, pack_reply(reply, manifest))

    def _client(self, manifest: Manifest, name: str, node: Mapping[str, Any]) -> SiloClient:
        """What computes for the silo in this run, made at the first message that this process sees."""
        partition = _partition(node)
        key = (manifest.hash, partition, name)
        if key not in _clients:
            if manifest.model.name is None and self.make_model is None:
                raise ConfigError(
                    "this run's network is not one of fedilc's; give it to make_client_app as make_model"
                )

            def make(manifest: Manifest) -> Silo:
                silo = self._silo(partition, manifest.seed, node)
                silo.name = name
                return silo

            build = self._model if self.make_model is not None else None
            _clients[key] = make_client(manifest, name, make, build, self.device, _states(node))
        _clients.move_to_end(key)
        while len(_clients) > MOST_CLIENTS:
            _clients.popitem(last=False)
        return _clients[key]

    def _model(self, _: Manifest) -> nn.Module:
        assert self.make_model is not None
        made = call_user_code(self.make_model, "make_model")
        if not isinstance(made, nn.Module):
            raise ConfigError(f"make_model gave {type(made).__name__}, not a torch.nn.Module")
        return made

    def _silo(self, partition: int, seed: int, node: Mapping[str, Any]) -> Silo:
        """The silo of the node's own function, if it names one, or of the app's."""
        own = node.get("make-silo")
        function = self.make_silo if own is None else find_function(str(own), "make-silo")
        takes_seed = "seed" in inspect.signature(function).parameters
        silo = call_user_code(
            lambda: function(partition, seed=seed) if takes_seed else function(partition), "make_silo"
        )
        if not isinstance(silo, Silo):
            raise DataError(f"make_silo({partition}) gave {type(silo).__name__}, not a fedilc.Silo")
        return silo


def _replying(message: Message, work: Callable[[], Any]) -> Message:
    """The answer, or one sentence about why there is none; what nobody foresaw is left to Flower."""
    from flwr.app import Message

    try:
        content = work()
    except FedILCError as error:
        content = make_content({"problem": " ".join(str(error).split()) or type(error).__name__})
    return Message(content, reply_to=message)


def _partition(node: Mapping[str, Any]) -> int:
    if "partition-id" not in node:
        raise ConfigError("this node has no partition-id; start it with --node-config 'partition-id=0'")
    return _whole(node, "partition-id")


def _states(node: Mapping[str, Any]) -> Path:
    """Return where the node keeps what its silo remembers: its `state-folder`, or the user's cache."""
    given = node.get("state-folder")
    return Path(pooch.os_cache("fedilc")) / "state" if given is None else Path(str(given))


def _whole(values: Mapping[str, Any], key: str) -> int:
    try:
        return int(values[key])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{key}={values.get(key)!r} is not a whole number") from error
