"""The command that runs the suite and keeps its results in docs/data."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import trio

from mcpconformance import page, suite
from mcpconformance.campaign import campaign


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code.

    Returns:
        0: nothing failed. 1: something did, or `--check` found other results than those kept. 2: it
        could not be run.
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
    if options.check:
        same = results == page.read()
        if not same:
            print("docs/data has other results; `make conformance` writes them")
        return 1 if failures or not same else 0
    page.write(results)
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="run.py", description="Run MCP's conformance suite and clients; keep the results."
    )
    parser.add_argument("--check", action="store_true", help="compare with the kept results only")
    return parser


def _tell(line: str) -> None:
    print(line, file=sys.stderr)
