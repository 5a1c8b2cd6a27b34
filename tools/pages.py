"""Write the pages that are made from programs and data, for `make docs`.

The programs are our own: their parsers and tables. The data is in docs/data; `make bench`,
`make box-peers` and `make conformance` write it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES: Mapping[str, str] = {
    "reference/options": "cli_reference",
    "reference/operations": "operations_page",
    "reference/metrics": "metrics_page",
    "reference/files-that-run": "autorun_page",
    "contributing/probes": "isolation.page",
    "contributing/conformance": "mcpconformance.page",
    "explanation/benchmarks": "report",
    "explanation/box-peers": "boxpeers.page",
}
"""Pages below docs, each with the module whose `page` gives its text. .gitignore has them, too."""


def read(name: str) -> Any:
    """Read data of that name."""
    return json.loads((DOCS / f"data/{name}.json").read_text(encoding="utf-8"))


def keep(name: str, data: object) -> Path:
    """Keep data under a name, a line for each innermost list and map; returns the file."""
    text = json.dumps(data, ensure_ascii=False, indent=1)
    text = re.sub(r"[\[{]\n[^\[\]{}]*\n *[\]}]", _line, text)
    path = DOCS / f"data/{name}.json"
    path.write_text(f"{text}\n", encoding="utf-8")
    return path


def _line(found: re.Match[str]) -> str:
    return re.sub(r"\n *", " ", found[0])


def main() -> None:
    """Write them all."""
    sys.path += [str(ROOT / part) for part in ("tests", "tests/support", "benchmarks")]
    for name, module in PAGES.items():
        path = DOCS / f"{name}.md"
        path.write_text(import_module(module).page(), encoding="utf-8")


if __name__ == "__main__":
    main()
