"""Certificates that programs of the session trust, also in the form that Java reads."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")
_BEGIN = b"\xfe\xed\xfe\xed\x00\x00\x00\x02"
_TRUSTED = b"\x00\x00\x00\x02"

PASSWORD = "changeit"  # noqa: S105 - Java's own default; it protects from nothing
_SALT = b"Mighty Aphrodite"


def key_store(pem: bytes) -> bytes:
    """Return a store of the certificates in a file of PEM: a "Java KeyStore".

    The format is older than its successor PKCS12, simple, and read by every Java:
    `sun.security.provider.JavaKeyStore` in OpenJDK.
    """
    entries: list[bytes] = []
    for number, found in enumerate(_PEM.finditer(pem)):
        try:
            certificate = base64.b64decode(found.group(1))
        except binascii.Error:
            continue
        entries.append(
            _TRUSTED
            + _text(f"nsm-{number}")
            + bytes(8)  # the time of its addition
            + _text("X.509")
            + len(certificate).to_bytes(4, "big")
            + certificate
        )
    data = _BEGIN + len(entries).to_bytes(4, "big") + b"".join(entries)
    digest = hashlib.sha1(PASSWORD.encode("utf-16-be") + _SALT + data).digest()  # noqa: S324
    return data + digest


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


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
