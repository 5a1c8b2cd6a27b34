"""Runs MCP's own conformance suite and clients against nsm."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _run() -> int:
    # As a script it has its own folder on the path, and the rest of the tree has to be found.
    sys.path[:1] = [str(ROOT / part) for part in ("tests", "tests/support", "tools")]
    from mcpconformance.campaign import main

    return main()


if __name__ == "__main__":
    sys.exit(_run())
