"""The command that runs attacks and work in each sandbox and keeps the results in docs/data."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# As a script it has its own folder on the path, and the rest of the tree has to be found.
sys.path[:1] = [
    str(ROOT / part) for part in ("tests", "tests/support", "benchmarks", "clients", "tools")
]

from boxpeers import attacks, page, tasks  # noqa: E402
from boxpeers.sandboxes import NONE, SANDBOXES, NotHereError, Sandbox  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code.

    Returns:
        0: each attack succeeds without a sandbox, and each task can be done there. 1: one is no
        attack or no task here, and no results are kept.
    """
    parser = argparse.ArgumentParser(description="Compare nsm's box with other sandboxes.")
    parser.add_argument(
        "--only", metavar="NAME", help="one sandbox; prints its results, and keeps none"
    )
    only = parser.parse_args(arguments).only
    described: dict[str, str] = {}
    chosen = [each for each in (NONE, *SANDBOXES) if only in (None, each.name)]
    columns = [_column(sandbox, described) for sandbox in chosen]
    if only:
        return 0
    nothing, *others = columns
    wrong = [name for name, each in nothing.attacks.items() if each[0] != "open"]
    wrong += [name for name, done in nothing.tasks.items() if not done]
    for name in wrong:
        print(f"{name}: not as it has to be without a sandbox", file=sys.stderr)
    if wrong:
        return 1
    page.write(others, described)
    return 0


def _column(sandbox: Sandbox, described: dict[str, str]) -> page.Column:
    column = page.Column(name=sandbox.name, what=sandbox.what)
    try:
        for result in attacks.run_all(sandbox):
            column.attacks[result.name] = (result.outcome, result.count)
            described.setdefault(result.name, result.what)
            print(f"{sandbox.name}: {result.name}: {result.outcome} {result.count}", flush=True)
        for name, done in tasks.run_tasks(sandbox):
            column.tasks[name] = done
            print(f"{sandbox.name}: {name}: {'done' if done else 'not done'}", flush=True)
    except NotHereError as error:
        column.missing = str(error)
        print(f"{sandbox.name}: {error}", flush=True)
    return column


if __name__ == "__main__":
    sys.exit(main())
