"""Run all silos in this process: the default runtime, and the reference for every other."""

from __future__ import annotations

from collections.abc import Iterator

from fedilc.data import Federation
from fedilc.data.silo_store import SiloStore
from fedilc.federation.client import Metrics, SiloClient
from fedilc.federation.control_variates import SiloState
from fedilc.federation.program import Program
from fedilc.federation.protocol import Reply, Request
from fedilc.gradients import ModelRunner
from fedilc.gradients.forward import KEPT_BYTES
from fedilc.runtimes.base import Runtime


class LocalRuntime(Runtime):
    """A runtime that asks silos one after another, all with the runner of the model that the server trains.

    The model is in memory once: silos compute at the server's own w, and local steps restore it.

    Between the steps of a round it keeps the forward passes of as many silos as fit in
    `kept_bytes`; the others compute theirs again, to the same bits. Silos that are not resident are
    opened for each request and released after it: at most one is in memory.
    """

    sets_aside = False

    def __init__(
        self,
        store: SiloStore | Federation,
        runner: ModelRunner,
        program: Program,
        metrics: Metrics,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self.store = SiloStore.of(store) if isinstance(store, Federation) else store
        self.silos = self.store.silos
        self.own = frozenset(self.silos)
        self.kept_bytes = kept_bytes
        self.runner, self.program, self.metrics = runner, program, metrics
        self.clients: dict[str, SiloClient] = {}
        self._states: dict[str, SiloState] = {}

    def ask(self, request: Request) -> Iterator[Reply]:
        """Yield the reply of each silo asked that is this process's own, in the order asked."""
        kept = 0
        for name in request.silos:
            if name not in self.own:
                continue
            client = self._client(name)
            yield client.answer(request, self.kept_bytes - kept if self.store.resident else 0)
            kept += client.computation.kept_bytes
            del client  # otherwise this silo stays in memory while the next one is opened

    def _client(self, name: str) -> SiloClient:
        client = self.clients.get(name)
        if client is None:
            silo = self.store.open(name)
            client = SiloClient(silo, self.runner, self.program, self.metrics, self._state(name))
            if self.store.resident:
                self.clients[name] = client
        return client

    def _state(self, name: str) -> SiloState | None:
        """Return a silo's state, if the algorithm keeps one."""
        if self.program.keeps_state and name not in self._states:
            self._states[name] = SiloState(name, self.state_folder)
        return self._states.get(name)
