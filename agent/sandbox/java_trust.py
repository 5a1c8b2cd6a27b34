"""Certificates in the form that Java reads, which takes no file of PEM: a "Java KeyStore".

The format is older than its successor PKCS12, simple, and read by every Java:
`sun.security.provider.JavaKeyStore` in OpenJDK.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")
_BEGIN = b"\xfe\xed\xfe\xed\x00\x00\x00\x02"
_TRUSTED = b"\x00\x00\x00\x02"

PASSWORD = "changeit"  # noqa: S105 - Java's own default; it protects from nothing
_SALT = b"Mighty Aphrodite"


def key_store(pem: bytes) -> bytes:
    """Return a store of the certificates in a file of PEM."""
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
