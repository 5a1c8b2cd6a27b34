"""The benchmarks are scripts, not a package; their pure parts are imported from their folder."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Last, so that nothing else is found there.
sys.path.append(str(ROOT / "benchmarks"))
