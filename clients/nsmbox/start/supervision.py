"""Watch over the supervisor of a running box: have the next one started, or tell that none can be.

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

from nsmbox.model.plan import Plan

if TYPE_CHECKING:
    from nsm.wire.host import BoxPlace

PAUSE_S = 2.0
"""Before the next connection after one that ended at once: the box may have taken all that its
socket serves.
"""

_NOTICE_BYTES = 4096


def watch(place: BoxPlace, lost: Callable[[], None], *, name: str) -> None:
    """Wait until nobody has the box's sockets any more, then call `lost`.

    Args:
        place: resources that the supervisor gave to the box.
        name: the program, for the supervisor's lists.
    """
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
    return (
        f"the supervisor has ended, and no other one can serve this box: no {', no '.join(lacking)}"
    )


def _is_shut_down(connection: socket.socket, name: str) -> bool:
    """Wait until a connection ends; return whether the supervisor said that it was shut down."""
    from nsm import Client  # noqa: PLC0415  # when the box runs

    with Client(connection=connection, name=name, project=None):
        said = b""
        while data := connection.recv(_NOTICE_BYTES):
            said = data
        return bool(said)
