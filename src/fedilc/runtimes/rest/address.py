"""The coordinator's address, and what would be exposed there: tokens, gradients, secret files."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import stat
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedilc.errors import ConfigError, FedILCWarning

if TYPE_CHECKING:
    from fedilc.runtimes.rest.auth import TokenFile, Tokens

SOON_DAYS = 3
_DATES = {9: "is not valid yet", 10: "has expired"}  # by OpenSSL's code of a failed verification
_FLIGHTS = 3  # turns that each end of a handshake needs at most


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
        """Raise if tokens or gradients would be sent without TLS and nobody has allowed it."""
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("`cert` and `key` belong together; give both")
        for path in (self.certificate, self.key, self.client_authority):
            if path is not None and not path.exists():
                raise ConfigError(f"{path} does not exist; give certificates and key as PEM files")
        if self.client_authority is not None and self.certificate is None:
            raise ConfigError("`client_ca` needs TLS: give `cert` and `key` as well")
        warn_if_public(self.key, "the key of the coordinator's certificate")
        if self.certificate is not None and self.key is not None:
            require_valid_now(self.certificate, self.key)
        local = is_loopback(self.host)
        if self.certificate is None and not (self.insecure or self.allow_insecure):
            raise ConfigError(
                "give `cert` and `key` for TLS, or `insecure=True` to use no TLS on a loopback address"
            )
        if self.certificate is None and not local and not self.allow_insecure:
            raise ConfigError(
                f"`insecure=True` is for loopback addresses, and {self.host} is not one: give `cert` "
                "and `key`, or `allow_insecure=True` if something else protects the connection"
            )
        if tokens is None and not (local and self.insecure):
            raise ConfigError(
                "give `tokens=FILE` (`fedilc token NAME` makes it), or `client_ca`; only `insecure=True` on "
                "a loopback address needs neither"
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
            f"every user of this machine can read or change {path}, {what}; run chmod 600 on it",
            FedILCWarning,
            stacklevel=2,
        )


def require_valid_now(certificate: Path, key: Path) -> None:
    """Raise if a certificate has expired or is not valid yet, as every silo would; warn if it expires soon.

    The dates are read by a TLS handshake in memory with a client that trusts this certificate. A certificate
    and key that cannot be used at all are reported when the server starts.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        server.load_cert_chain(certificate, key)
        client.load_verify_locations(certificate)
        expires = _handshake(client, server).get("notAfter")
    except ssl.SSLCertVerificationError as error:
        if error.verify_code not in _DATES:
            return
        raise ConfigError(
            f"the certificate {certificate} {_DATES[error.verify_code]}, so every silo would refuse it; "
            "renew it, or correct this machine's clock"
        ) from error
    except (ssl.SSLError, OSError):
        return
    days = (ssl.cert_time_to_seconds(str(expires)) - time.time()) / 86400
    if days < SOON_DAYS:
        warnings.warn(
            f"the certificate {certificate} expires in {days:.1f} days; renew it before then",
            FedILCWarning,
            stacklevel=3,
        )


def _handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> dict[str, Any]:
    """Let two ends shake hands in memory; return the server's certificate as the client reads it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(_FLIGHTS):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends[0].getpeercert() or {}
