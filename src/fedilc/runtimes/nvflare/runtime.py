"""The runtime that puts requests to sites as tasks of a job; how a task travels is told to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping

from fedilc.errors import ConfigError, ProtocolError, SilosLostError
from fedilc.federation import Reply, Request, Runtime
from fedilc.runtimes.nvflare.site import JOIN, STEP
from fedilc.runtimes.remote.manifest import Manifest
from fedilc.runtimes.remote.open_request import Posted, Posting

Carry = Callable[[str, bytes, list[str]], Iterator[tuple[str, bytes | None]]]


class NVFlareRuntime(Runtime):
    """Asks the silos of a job's sites.

    A site that is silent until the task's timeout is lost to the round and to those after it, until it asks
    for work again. One that answers that it cannot, or what cannot be used, is left out for the whole job.

    Args:
        manifest: what every site is told when it joins.
        sites: the names of the job's sites.
        needed: how many silos a round needs at least.
        carry: puts a task with a body to sites and yields each one's answer, None for one that cannot.
        tell: is given a sentence on each thing that went wrong.
    """

    def __init__(
        self,
        manifest: Manifest,
        sites: Iterable[str],
        needed: int,
        carry: Carry,
        tell: Callable[[str], None],
    ) -> None:
        self.manifest = manifest
        self.silos = tuple(manifest.silos)
        self.sites = tuple(sites)
        self.needed = needed
        self.carry = carry
        self.tell = tell
        self._site_of: dict[str, str] | None = None
        self._silent: set[str] = set()
        self._refused: set[str] = set()
        self._have: dict[str, str] = {}
        self._posting = Posting(manifest)

    def present(self) -> tuple[str, ...]:
        """The silos to ask in the next round; the first time, sites say which they are."""
        if self._site_of is None:
            self._site_of = self._join()
        lost = self._silent | self._refused
        there = tuple(silo for silo in self.silos if silo in self._site_of and silo not in lost)
        if len(there) < self.needed:
            missing = ", ".join(silo for silo in self.silos if silo not in there)
            raise SilosLostError(
                f"{missing} did not join or did not answer, and {len(there)} of {len(self.silos)} silos are "
                f"left, fewer than min_silos={self.needed}; their sites' logs say why, and the job submitted "
                "again goes on from the last completed round"
            )
        return there

    def returned(self, site: str) -> None:
        """A site asks for work: if it was silent, it is asked again from the next round on."""
        for silo in tuple(self._silent):
            if self._site_of is not None and self._site_of[silo] == site:
                self._silent.discard(silo)
                self.tell(f"silo {silo!r} is back")

    def ask(self, request: Request) -> Iterator[Reply]:
        """Put the request to the silos' sites; yield answers as they come."""
        assert self._site_of is not None
        posted = self._posting.post(request)
        silo_at = {self._site_of[silo]: silo for silo in request.silos}
        all_have = all(self._have.get(silo) == posted.weights for silo in request.silos)
        body = posted.body(posted.weights if all_have else "") or b""
        posted.close()
        silent = set(request.silos)
        for site, answer in self.carry(STEP, body, list(silo_at)):
            silo = silo_at[site]
            silent.discard(silo)
            reply = self._read(posted, silo, answer)
            if reply is not None:
                self._have[silo] = posted.weights
                yield reply
        for silo in sorted(silent):
            self._silent.add(silo)
            self._have.pop(silo, None)
            self.tell(f"silo {silo!r} is left out: no {request.step} of round {request.round} came from it")

    def _read(self, posted: Posted, silo: str, answer: bytes | None) -> Reply | None:
        try:
            if answer is not None:
                return posted.read(answer, silo)
            self.tell(f"silo {silo!r} is left out: it could not compute its answer, and its log says why")
        except ProtocolError as error:
            self.tell(f"silo {silo!r} is left out: its answer is refused, {error}")
        self._refused.add(silo)
        return None

    def _join(self) -> dict[str, str]:
        """Tell every site of the run; which site is which silo."""
        manifest = json.dumps(self.manifest.model_dump(mode="json")).encode()
        site_of: dict[str, str] = {}
        for site, answer in self.carry(JOIN, manifest, list(self.sites)):
            silo = self._silo_named(site, answer)
            if silo is None:
                continue
            if silo in site_of:
                raise ConfigError(
                    f"sites {site_of[silo]!r} and {site!r} both are silo {silo!r}; correct `silo` in the "
                    "local/fedilc.json of one of them"
                )
            site_of[silo] = site
        return site_of

    def _silo_named(self, site: str, answer: bytes | None) -> str | None:
        if answer is None:
            self.tell(f"site {site!r} does not join; its log says why")
            return None
        try:
            found = json.loads(answer)
        except ValueError:
            found = None
        if not isinstance(found, Mapping) or found.get("manifest") != self.manifest.hash:
            self.tell(f"site {site!r} answers something else than its silo's name, and is left out")
            return None
        silo = found.get("silo")
        return silo if silo in self.manifest.silos else None
