"""Certificates that programs of the session trust: those of the system, and one more."""

from __future__ import annotations

import os

from sandbox.java_trust import key_store

BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ssl/cert.pem",
)
"""Files with the certificates that a system trusts; the first that is there counts."""

DIRECTORY = "/tmp/.nsm"  # noqa: S108 - the session's own
BUNDLE = f"{DIRECTORY}/certificates.pem"

MAX_BYTES = 4 * 1024 * 1024


def write_bundle(certificate: str) -> str:
    """Write a file with what the system trusts and this certificate, and `.jks` for Java beside it;
    returns the path of the first.

    Code can change the file: it may trust whom it likes.

    Raises:
        OSError: it cannot be written.
    """
    os.makedirs(DIRECTORY, mode=0o755, exist_ok=True)
    data = _trusted() + certificate.encode()
    for path, content in ((BUNDLE, data), (f"{BUNDLE}.jks", key_store(data))):
        with open(f"{path}.new", "wb") as file:
            file.write(content)
        os.rename(f"{path}.new", path)
    return BUNDLE


def _trusted() -> bytes:
    for path in (os.environ.get("SSL_CERT_FILE", ""), *BUNDLES):
        try:
            with open(path, "rb") as file:
                return file.read(MAX_BYTES) + b"\n"
        except OSError:
            continue
    return b""
