"""Send requests to sites as tasks of a job; the controller gives the function that sends a task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping

from fedilc.errors import ConfigError, ProtocolError, SilosLostError
from fedilc.federation import Reply, Request, Runtime
from fedilc.federation.json_files import parse_json
from fedilc.runtimes.nvflare.executor import JOIN, STEP
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.open_request import OpenRequest, RequestOpener

SendTask = Callable[[str, bytes, list[str]], Iterator[tuple[str, bytes | None]]]


class NVFlareRuntime(Runtime):
    """The runtime over a job's sites.

    A site that does not reply before the task's timeout is left out of the round and of later rounds, until
    it asks for a task again. A site whose task fails, or whose reply is not valid, is left out of the job.

    Args:
        manifest: the manifest that every site gets when it joins.
        sites: the names of the job's sites.
        needed: how many silos a round needs at least.
        send: sends a task with a body to sites and yields each site's result, None if the site failed.
        log: is called with one sentence per problem.
    """

    def __init__(
        self,
        manifest: Manifest,
        sites: Iterable[str],
        needed: int,
        send: SendTask,
        log: Callable[[str], None],
    ) -> None:
        self.manifest = manifest
        self.silos = tuple(manifest.silos)
        self.sites = tuple(sites)
        self.needed = needed
        self.send = send
        self.log = log
        self._site_of: dict[str, str] | None = None
        self._silent: set[str] = set()
        self._failed: set[str] = set()
        self._held: dict[str, str] = {}
        self._opener = RequestOpener(manifest)

    def present(self) -> tuple[str, ...]:
        """Return the silos to ask in the next round; the first call lets the sites join."""
        if self._site_of is None:
            self._site_of = self._join()
        lost = self._silent | self._failed
        present = tuple(silo for silo in self.silos if silo in self._site_of and silo not in lost)
        if len(present) < self.needed:
            missing = ", ".join(silo for silo in self.silos if silo not in present)
            raise SilosLostError(
                f"{missing} did not join or did not reply, and {len(present)} of {len(self.silos)} silos are "
                f"left, fewer than min_silos={self.needed}; read their sites' logs, then submit the job "
                "again: it continues after the last completed round"
            )
        return present

    def mark_present(self, site: str) -> None:
        """Ask a site that was silent again, from the next round on."""
        for silo in tuple(self._silent):
            if self._site_of is not None and self._site_of[silo] == site:
                self._silent.discard(silo)
                self.log(f"silo {silo!r} is back")

    def ask(self, request: Request) -> Iterator[Reply]:
        """Send the request to the silos' sites; yield replies as they come."""
        assert self._site_of is not None
        open_request = self._opener.open(request)
        silo_at = {self._site_of[silo]: silo for silo in request.silos}
        all_hold = all(self._held.get(silo) == open_request.weights_digest for silo in request.silos)
        body = open_request.body(open_request.weights_digest if all_hold else "") or b""
        open_request.close()
        silent = set(request.silos)
        for site, result in self.send(STEP, body, list(silo_at)):
            silo = silo_at[site]
            silent.discard(silo)
            reply = self._read(open_request, silo, result)
            if reply is not None:
                self._held[silo] = open_request.weights_digest
                yield reply
        for silo in sorted(silent):
            self._silent.add(silo)
            self._held.pop(silo, None)
            self.log(f"silo {silo!r} is left out: no reply to {request.step} of round {request.round}")

    def _read(self, open_request: OpenRequest, silo: str, result: bytes | None) -> Reply | None:
        try:
            if result is not None:
                return open_request.read(result, silo)
            self.log(f"silo {silo!r} is left out: its task failed; its log says why")
        except ProtocolError as error:
            self.log(f"silo {silo!r} is left out: its reply is not valid, {error}")
        self._failed.add(silo)
        return None

    def _join(self) -> dict[str, str]:
        """Send the manifest to every site; return the site of each silo."""
        manifest = json.dumps(self.manifest.model_dump(mode="json")).encode()
        site_of: dict[str, str] = {}
        for site, result in self.send(JOIN, manifest, list(self.sites)):
            silo = self._silo_at(site, result)
            if silo is None:
                continue
            if silo in site_of:
                raise ConfigError(
                    f"sites {site_of[silo]!r} and {site!r} both are silo {silo!r}; correct `silo` in the "
                    "local/fedilc.json of one of them"
                )
            site_of[silo] = site
        return site_of

    def _silo_at(self, site: str, result: bytes | None) -> str | None:
        if result is None:
            self.log(f"site {site!r} did not join; its log says why")
            return None
        try:
            joined = parse_json(result)
        except ValueError:
            joined = None
        if not isinstance(joined, Mapping) or joined.get("manifest") != self.manifest.hash:
            self.log(f"site {site!r} is left out: it did not reply with the name of its silo")
            return None
        silo = joined.get("silo")
        return silo if silo in self.manifest.silos else None
