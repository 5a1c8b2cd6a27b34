"""The command that makes the tables of `docs/contributing/conformance.md`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import trio

from mcpconformance import page, suite
from mcpconformance.campaign import campaign

PAGE = suite.HERE.parents[1] / "docs/contributing/conformance.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code.

    Returns:
        0: nothing failed. 1: something did, or the page was to be the same and is not. 2: it could
        not be run.
    """
    options = _parser().parse_args(arguments)
    try:
        installed = suite.install()
        # A socket's path has at most 107 bytes.
        with tempfile.TemporaryDirectory(prefix="nsm-mcp-", dir="/tmp") as directory:
            results = trio.run(campaign, installed, Path(directory), _tell)
    except (suite.NotHereError, suite.SuiteError) as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2
    print(page.summary(results))
    failures = page.failures(results)
    for failure in failures:
        print(f"failed: {failure}")
    before = PAGE.read_text()
    after = page.replaced(before, page.tables(results))
    if options.check:
        if after != before:
            print(f"{PAGE} says something else; `make conformance` writes it")
        return 1 if failures or after != before else 0
    PAGE.write_text(after)
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="run.py", description="Run MCP's conformance suite and clients; write the page."
    )
    parser.add_argument("--check", action="store_true", help="compare with the page only")
    return parser


def _tell(line: str) -> None:
    print(line, file=sys.stderr)
