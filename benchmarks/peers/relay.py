"""A process that does nothing but pass messages on: what a hop costs at least.

relay.py LEFT RIGHT     passes on from socket LEFT to socket RIGHT, and the answer back
relay.py LEFT           answers what comes with the same bytes
"""

from __future__ import annotations

import os
import sys

MAX_BYTES = 65536


def main() -> int:
    """Pass messages on until end-of-file."""
    descriptors = [int(argument) for argument in sys.argv[1:]]
    left = descriptors[0]
    while message := os.read(left, MAX_BYTES):
        if len(descriptors) > 1:
            os.write(descriptors[1], message)
            message = os.read(descriptors[1], MAX_BYTES)
        os.write(left, message)
    return 0


if __name__ == "__main__":
    sys.exit(main())
