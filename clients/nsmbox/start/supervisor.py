"""A box's use of the supervisor: its sockets, what it gives for secrets, and the watch over it.

The supervisor has the box's sockets, and a holder keeps them for the next one. A connection to one
of them ends with the supervisor. If a holder has the socket then, a new connection waits there for
the next supervisor, which serves the box as before. If nobody has it, no supervisor can serve the
box again: its sockets were made for it before its command began.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm.dataclass import replace
from nsm.jail.proxyvariables import PROXY_PORT, java_options, trust_variables
from nsmbox.model.plan import CERTIFICATES_FILE, MODES, BoxError, Mount, Plan, Variable

if TYPE_CHECKING:
    from nsm.wire.host import BoxPlace


CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/certs/ca-bundle.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
"""Paths of certificates on Debian, NixOS, Fedora and Alpine, where OpenSSL and others look."""

MAX_BUNDLE_BYTES = 4 * 1024 * 1024


_NETWORKS = {mode: word for word, mode in MODES.items()}
"""Names of a box's network modes, the same as for sessions, which reach no more than the box."""


def open_place(plan: Plan, program: str, tell: Callable[[str], None]) -> BoxPlace | None:
    """Ask the supervisor for what it makes for this process; None, and told, if it makes nothing.

    Raises:
        BoxError: it makes nothing, and the box is of no use without.
    """
    from nsm import Client  # noqa: PLC0415
    from nsm.wire.errors import NsmError  # noqa: PLC0415

    below = plan.directory.rstrip("/") + "/"
    hides = any(m.kind == "mask" and m.target.startswith(below) for m in plan.mounts)
    try:
        with Client(host="", name=program) as client:  # boxes are on this machine
            return client.boxes.open(
                plan.directory,
                profile=plan.profile,
                digest=plan.digest,
                network=_NETWORKS[plan.network.mode],
                allow=plan.network.allow,
                shows_project=not hides,
                programs=plan.programs,
                secrets=plan.secrets,
                writable=plan.writable,
                limits=plan.limits.together,
            )
    except (NsmError, OSError) as error:
        message, hint = str(error), "`nsm doctor` tells more."
        if isinstance(error, NsmError):
            message, hint = error.message, error.hint
        for need, is_needed in (
            ("may start programs of the host, which the supervisor does", plan.programs),
            ("has secrets, which the supervisor gives", plan.secrets),
            (
                "has a network that is a list, which the supervisor serves",
                plan.network.mode == "allow",
            ),
        ):
            if is_needed:
                raise BoxError(f"the box {need}: {message}", hint=hint) from error
        tell(
            "the box has no sessions of nsm, and its limit of memory is for each process alone: "
            f"{message}"
        )
        return None


def of_ended_processes(box: str, program: str) -> str:
    """Sentence for people about processes that were ended because the box had too much memory."""
    from nsm import Client  # noqa: PLC0415

    with Client(host="", name=program, autostart=False) as client:
        use = next((row.limits for row in client.boxes.list() if row.id == box), None)
    if use is None or not use.killed:
        return ""
    processes = "1 process was" if use.killed == 1 else f"{use.killed} processes were"
    return (
        f"{processes} ended because the box had more than its {use.memory_limit_bytes >> 20} MiB "
        "of memory; `--limit memory_mb=...` sets another limit"
    )


def with_secrets(plan: Plan, place: BoxPlace | None) -> Plan:
    """Return the plan with what the supervisor gave for its secrets."""
    from sandbox.certificates import key_store  # noqa: PLC0415  # few boxes have secrets

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
    java = java_options("", str(PROXY_PORT), trusted=CERTIFICATES_FILE)
    trust = {**trust_variables(CERTIFICATES_FILE), "JAVA_TOOL_OPTIONS": java}
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


PAUSE_S = 2.0
"""Before the next connection after one that ended at once: the box may have taken all that its
socket serves.
"""

_NOTICE_BYTES = 4096


def watch(place: BoxPlace, lost: Callable[[], None], *, name: str) -> None:
    """Wait until nobody has the box's sockets any more, then call `lost`."""
    from nsm import Client  # noqa: PLC0415  # when the box runs
    from nsm.wire.errors import NsmError  # noqa: PLC0415

    path = os.path.join(place.sockets, "control.sock")
    shut_down = False
    while True:
        began_s = time.monotonic()
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(path)
            except OSError:
                lost()
                return
            with suppress(NsmError, OSError):
                if not shut_down:
                    # Starts a supervisor if none answers.
                    Client(host="", name=name, project=None).close()
                shut_down = _is_shut_down(connection, name)
        if time.monotonic() < began_s + PAUSE_S:
            time.sleep(PAUSE_S)


def without(plan: Plan, place: BoxPlace) -> str:
    """Sentence for people about a box that no supervisor can serve any more."""
    lacking = ["sessions of nsm"]
    if plan.network.mode == "allow":
        lacking.append("network")
    if plan.programs:
        lacking.append("programs of the host")
    if (limits := place.box.limits) is not None and limits.memory_by == "watchdog":
        lacking.append("limit of memory")
    return f"the supervisor has ended, so this box goes on without {', '.join(lacking)}"


def _is_shut_down(connection: socket.socket, name: str) -> bool:
    """Wait until a connection ends; return whether the supervisor said that it was shut down."""
    from nsm import Client  # noqa: PLC0415  # when the box runs

    with Client(connection=connection, name=name, project=None):
        said = b""
        while data := connection.recv(_NOTICE_BYTES):
            said = data
        return bool(said)
