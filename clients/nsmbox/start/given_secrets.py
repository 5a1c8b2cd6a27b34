"""Secrets of a box: stand-ins, and a certificate that its programs trust."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from nsm.dataclass import replace
from nsm.jail.proxyvariables import PROXY_PORT, trust_variables
from nsmbox.model.plan import CERTIFICATES_FILE, BoxError, Mount, Plan, Variable
from nsmbox.start.check import CERTIFICATES
from sandbox.certificates import key_store

if TYPE_CHECKING:
    from nsm.wire.host import BoxPlace

MAX_BUNDLE_BYTES = 4 * 1024 * 1024


def with_secrets(plan: Plan, place: BoxPlace | None) -> Plan:
    """Return the plan with what the supervisor gave for its secrets.

    Raises:
        BoxError: it gave nothing.
    """
    given = place.secrets if place is not None else None
    if given is None:
        raise BoxError(
            "the supervisor gave no secrets: it may be of an older nsm",
            hint="`nsm reload` replaces it, with all sessions.",
        )
    bundle, trusted = _trusted()
    data = trusted + given.certificate.encode()
    # Not every program reads a variable; the file at its place in the box is the same for all.
    targets = [CERTIFICATES_FILE, *([bundle] if bundle else [])]
    files = {**dict.fromkeys(targets, data), f"{CERTIFICATES_FILE}.jks": key_store(data)}
    added = [
        Mount(kind="ro-file", target=target, data=content, mode=0o444, why="trusted certificates")
        for target, content in files.items()
    ]
    trust = {
        name: value.replace("{port}", str(PROXY_PORT))
        for name, value in trust_variables(CERTIFICATES_FILE).items()
    }
    values = {**trust, **given.variables}
    others = [variable for variable in plan.variables if variable.name not in values]
    more = [Variable(name=name, value=value) for name, value in values.items()]
    return replace(
        plan,
        mounts=(*plan.mounts, *added),
        variables=tuple(sorted((*others, *more), key=lambda variable: variable.name)),
    )


def _trusted() -> tuple[str, bytes]:
    """Find the certificates that this system trusts: the file, and its content. The file is empty
    where the box has it elsewhere."""
    for path in CERTIFICATES:
        try:
            with open(path, "rb") as file:
                content = file.read(MAX_BUNDLE_BYTES) + b"\n"
        except OSError:
            continue
        return (path if os.path.realpath(path) == path else "", content)
    return "", b""
