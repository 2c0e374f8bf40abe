"""An authority of one's own and a certificate for the loopback, made with openssl as the docs say."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from needs import need


@dataclass(frozen=True)
class Certificates:
    """An authority, and a server's certificate and key that it vouches for."""

    authority: Path
    certificate: Path
    key: Path


def make_client_certificate(made: Certificates, name: str, days: str = "30") -> tuple[Path, Path]:
    """A silo's own certificate and key, of the same authority."""
    openssl = need("openssl", "openssl", "makes the certificates of the tests")
    folder = made.authority.parent
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    words = ["req", *curve, "-keyout", str(key), "-out", f"{name}.csr", "-subj", f"/CN={name}"]
    subprocess.run([openssl, *words], cwd=folder, check=True, capture_output=True)
    signing = ["-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", days]
    signed = [openssl, "x509", "-req", *signing, "-out", str(certificate)]
    subprocess.run(signed, cwd=folder, check=True, capture_output=True)
    return certificate, key


def make_certificates(folder: Path, name: str = "IP:127.0.0.1", days: str = "30") -> Certificates:
    """For the loopback, or for another name that a certificate may carry; negative days are in the past."""
    openssl = need("openssl", "openssl", "makes the certificates of the tests")
    folder.mkdir(parents=True, exist_ok=True)

    def run(*words: str) -> None:
        subprocess.run([openssl, *words], cwd=folder, check=True, capture_output=True)

    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    run(
        "req",
        "-x509",
        *curve,
        "-keyout",
        "ca.key",
        "-out",
        "ca.pem",
        "-days",
        "30",
        "-subj",
        "/CN=test authority",
    )
    run("req", *curve, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=coordinator")
    (folder / "names").write_text(f"subjectAltName={name}\n")
    signing = ["-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", days]
    run("x509", "-req", *signing, "-extfile", "names", "-out", "cert.pem")
    return Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")
