"""Make the ClientApp: a node's silo, its own network, and its replies to the ServerApp.

In a deployment, every message may reach a new process, which builds silo, network and forward pass again.
If the process stays, as in a simulation, they are kept.
"""

from __future__ import annotations

import inspect
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fedilc.algorithms.user_code import call_user_code, find_function
from fedilc.config import read_experiment
from fedilc.data import Silo
from fedilc.data.download import cache_folder
from fedilc.data.inputs import shape_of, tensors_of
from fedilc.data.sources import Remote
from fedilc.errors import ConfigError, DataError, FedILCError
from fedilc.federation.client import SiloClient
from fedilc.gradients.forward import KEPT_BYTES
from fedilc.runtimes.flower import require_flower
from fedilc.runtimes.flower.runtime import STEP, make_content, read_about, read_body
from fedilc.runtimes.remote.manifest import Manifest, read_manifest
from fedilc.runtimes.remote.silo_client import make_client
from fedilc.runtimes.remote.wire import pack_reply, unpack_request

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

MAX_CLIENTS = 16
kept_clients: OrderedDict[tuple[str, int, str], SiloClient] = OrderedDict()


def make_client_app(
    make_silo: Callable[..., Silo], make_model: Callable[[], nn.Module] | None = None, device: str = "auto"
) -> ClientApp:
    """Return a ClientApp for your own silos.

    Args:
        make_silo: returns the `fedilc.Silo` of a partition; called with `partition_id`, and with the run's
            `seed` too, if it has an argument of that name. A node that names its own function with
            `--node-config 'make-silo="my_module:make_silo"'` uses that one.
        make_model: returns the network, if it is not a built-in one; the weights come with each message.
        device: "auto" (a GPU if there is one), "cpu", "cuda", ...
    """
    require_flower()
    from flwr.clientapp import ClientApp

    handlers = Handlers(make_silo, make_model, device)
    app = ClientApp()
    app.query("silo")(handlers.describe)
    app.train(STEP)(handlers.step)
    return app


def silo_of(
    experiment: str | os.PathLike[str],
    partition_id: int,
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
) -> Silo:
    """Return a silo of an experiment on this machine, to try an app before it has its own data.

    Args:
        experiment: a shipped experiment or a TOML file.
        partition_id: the silo's place in the order of the experiment's silos, from 0.
        seed: the run's seed.
        folder: the folder to which file names in the experiment are relative, if not its own.

    >>> silo_of("color-digits", 1)
    Silo('flip-0.30', ... examples of shape (2, 8, 8), ... for validation)
    """
    settings, own_folder = read_experiment(os.fspath(experiment))
    if isinstance(settings.data, Remote):
        raise ConfigError(
            f"the silos of experiment {settings.name!r} are elsewhere; let make_silo in client_app.py return "
            "this node's fedilc.Silo"
        )
    store = settings.data.store(seed, own_folder if folder is None else Path(folder))
    if not 0 <= partition_id < len(store.silos):
        raise DataError(
            f"experiment {settings.name!r} has {len(store.silos)} silos, but none for partition-id "
            f"{partition_id}; start as many nodes as there are silos"
        )
    return store.open(store.silos[partition_id])


@dataclass(frozen=True)
class Handlers:
    """A node's message handlers; a simulation pickles them for its processes, without the cached clients."""

    make_silo: Callable[..., Silo]
    make_model: Callable[[], nn.Module] | None
    device: str

    def describe(self, message: Message, context: Context) -> Message:
        """Reply with a description of this node's silo."""
        return _reply(message, lambda: self._description(message, context))

    def step(self, message: Message, context: Context) -> Message:
        """Reply to a request of the round."""
        return _reply(message, lambda: self._step(message, context))

    def _description(self, message: Message, context: Context) -> Any:
        partition = _partition(context.node_config)
        silo = self._silo(partition, _whole(read_about(message.content), "seed"), context.node_config)
        description = {
            "partition": partition,
            "partitions": context.node_config.get("num-partitions"),
            "name": silo.name,
            "examples": len(silo),
            "inputs": shape_of(silo.x),
            "whole": [not part.is_floating_point() for part in tensors_of(silo.x[:1])],
        }
        return make_content({"silo": json.dumps(description)})

    def _step(self, message: Message, context: Context) -> Any:
        about = read_about(message.content)
        manifest, name = read_manifest(about.get("manifest", "")), about.get("silo", "")
        received = unpack_request(read_body(message.content), manifest, "", {})
        received.require_for(name, manifest)
        client = self._client(manifest, name, context.node_config)
        kept = sum(client.computation.kept_bytes for client in kept_clients.values())
        reply = client.answer(received.request, KEPT_BYTES - kept)
        return make_content({}, pack_reply(reply, manifest))

    def _client(self, manifest: Manifest, name: str, node: Mapping[str, Any]) -> SiloClient:
        """Return the silo's client in this run; the first message to this process builds it."""
        partition = _partition(node)
        key = (manifest.hash, partition, name)
        if key not in kept_clients:
            if manifest.model.name is None and self.make_model is None:
                raise ConfigError(
                    "this run's network is not built in; give it to make_client_app as make_model"
                )

            def make(manifest: Manifest) -> Silo:
                silo = self._silo(partition, manifest.seed, node)
                silo.name = name
                return silo

            build = self._model if self.make_model is not None else None
            kept_clients[key] = make_client(manifest, name, make, build, self.device, _state_folder(node))
        kept_clients.move_to_end(key)
        while len(kept_clients) > MAX_CLIENTS:
            kept_clients.popitem(last=False)
        return kept_clients[key]

    def _model(self, _: Manifest) -> nn.Module:
        assert self.make_model is not None
        model = call_user_code(self.make_model, "make_model")
        if not isinstance(model, nn.Module):
            raise ConfigError(f"make_model returned {type(model).__name__}, not a torch.nn.Module")
        return model

    def _silo(self, partition: int, seed: int, node: Mapping[str, Any]) -> Silo:
        """Return the silo from the node's own function, if it names one, or else from the app's."""
        own = node.get("make-silo")
        function = self.make_silo if own is None else find_function(str(own), "make-silo")
        takes_seed = "seed" in inspect.signature(function).parameters
        silo = call_user_code(
            lambda: function(partition, seed=seed) if takes_seed else function(partition), "make_silo"
        )
        if not isinstance(silo, Silo):
            raise DataError(f"make_silo({partition}) returned {type(silo).__name__}, not a fedilc.Silo")
        return silo


def _reply(message: Message, work: Callable[[], Any]) -> Message:
    """Reply with the content, or with one sentence on why there is none; other errors are left to Flower."""
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


def _state_folder(node: Mapping[str, Any]) -> Path:
    """Return where the node keeps its silo's state: its `state-folder`, or the user's cache."""
    given = node.get("state-folder")
    return cache_folder() / "state" if given is None else Path(str(given))


def _whole(values: Mapping[str, Any], key: str) -> int:
    try:
        return int(values[key])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{key}={values.get(key)!r} is not a whole number") from error
