"""Certificates of the user's company: those that this machine trusts besides the public ones.

Code that may reach hosts trusts them, too: many libraries do not ask the system's store, and an
image has a store of its own. They are told apart from the public ones by their places, so that few
travel to each session.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping

from sandbox.certificates import BUNDLES

log = logging.getLogger(__name__)

ADDED = (
    "/usr/local/share/ca-certificates",  # Debian, Ubuntu, Alpine
    "/etc/pki/ca-trust/source/anchors",  # Fedora
    "/etc/ca-certificates/trust-source/anchors",  # Arch
    "/etc/pki/trust/anchors",  # openSUSE
)
"""Directories of certificates that an administrator adds to the system's store."""

VARIABLES = ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")
"""Variables of the supervisor with files of certificates to trust."""

MAX_BYTES = 4 * 1024 * 1024
MAX_FILES = 256

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")


def added_certificates(environ: Mapping[str, str], *, root: str = "/") -> str:
    """Find them, as PEM: those that were added to the system's store, and those in the files that
    variables name and the store does not have. Blocks.
    """
    store = next(filter(None, (_read(root + path) for path in BUNDLES)), dict[str, str]())
    added = {
        key: text
        for directory in ADDED
        for path in _files(root + directory)
        for key, text in _read(path).items()
        if key in store
    }
    for name in VARIABLES:
        if path := environ.get(name):
            added |= {key: text for key, text in _read(path).items() if key not in store}
    return "".join(f"{text}\n" for text in added.values())


def _files(directory: str) -> Iterator[str]:
    found = (
        os.path.join(place, name)
        for place, _, names in os.walk(directory)
        for name in sorted(names)
    )
    yield from (path for path, _ in zip(found, range(MAX_FILES), strict=False))


def _read(path: str) -> dict[str, str]:
    """Read the certificates in a file, by what is the same in each copy of one."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            text = file.read(MAX_BYTES)
    except OSError as error:
        if not isinstance(error, FileNotFoundError):
            log.warning("certificates in %s are not trusted: %s", path, error.strerror)
        return {}
    return {"".join(each.split()): each for each in _PEM.findall(text)}
