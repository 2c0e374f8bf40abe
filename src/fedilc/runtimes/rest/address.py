"""The coordinator's address, and what would be exposed there: tokens, gradients, secret files."""

from __future__ import annotations

import ipaddress
import socket
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

from fedilc.errors import ConfigError, FedILCWarning
from fedilc.runtimes.rest.tokens import TokenFile, Tokens


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine itself.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "10.0.0.7", "example.org")]
    [True, True, True, False, False]
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def warn_if_public(path: Path | None, what: str) -> None:
    """Warn if every user of this machine can read or change a file that holds a secret."""
    if path is None or not path.exists():
        return
    if path.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        warnings.warn(
            f"every user of this machine can read or change {path}, {what}; chmod 600 it",
            FedILCWarning,
            stacklevel=2,
        )


@dataclass(frozen=True)
class Address:
    """The address on which a coordinator listens, and how its connections are protected."""

    host: str = "127.0.0.1"
    port: int = 8443
    certificate: Path | None = None
    key: Path | None = None
    insecure: bool = False
    allow_insecure: bool = False
    client_authority: Path | None = None

    def require_safe(self, tokens: Tokens | TokenFile | None) -> None:
        """Raise if tokens or gradients would be sent without TLS although nobody allowed it."""
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--cert and --key belong together; give both")
        for path in (self.certificate, self.key, self.client_authority):
            if path is not None and not path.exists():
                raise ConfigError(f"{path} does not exist; give certificates and key as PEM files")
        if self.client_authority is not None and self.certificate is None:
            raise ConfigError(
                "--client-ca asks clients for certificates over TLS: give --cert and --key as well"
            )
        warn_if_public(self.key, "the key of the coordinator's certificate")
        local = is_loopback(self.host)
        if self.certificate is None and not (self.insecure or self.allow_insecure):
            raise ConfigError(
                "give --cert and --key for TLS, or --insecure to do without TLS on a loopback address"
            )
        if self.certificate is None and not local and not self.allow_insecure:
            raise ConfigError(
                f"--insecure is for loopback addresses, and {self.host} is not one: give --cert and --key, "
                "or --allow-insecure if something else protects the connection"
            )
        if tokens is None and not (local and self.insecure):
            raise ConfigError(
                "give --tokens FILE (make it with `fedilc token NAME`), or --client-ca; only --insecure on a "
                "loopback address needs neither"
            )

    def bind(self) -> socket.socket:
        """Return a listening socket; raise if the address cannot be used."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            return socket.create_server((self.host, self.port), family=family, backlog=512)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot listen on {self.host} port {self.port}: {reason}") from error

    def url(self, port: int) -> str:
        """Return the URL that silos and browsers use."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certificate else 'http'}://{host}:{port}"
