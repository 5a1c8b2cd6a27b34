"""The process that the supervisor starts to save a session by itself (`[session] keep`)."""

from __future__ import annotations

import os
import sys

from nsm.client.blocking import Client
from nsm.saves import kept
from nsm.saves.saving import Saving
from nsm.wire.errors import NsmError

NICE = 10
"""Lower priority: nobody waits for it."""


def main(arguments: list[str]) -> int:
    """Save a session: its id, and the largest size of all saves in MiB, are the arguments."""
    session, saves_mb = arguments
    os.nice(NICE)
    try:
        with Client(autostart=False, reconnect=False) as client:
            Saving(client, session).save(None, timeout_s=None, max_mb=int(saves_mb), automatic=True)
        kept.drop_automatic(int(saves_mb) << 20)
    except (NsmError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
