"""The command line of the conformance suite; README.md says how to use it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from conformance import table
from conformance.campaign import Report, start
from conformance.cases import CASES, LANGUAGES, Case, CaseError, Language, load_all
from conformance.targets import (
    GRACE_S,
    AgentTarget,
    ControlTarget,
    LostAnswerError,
    McpTarget,
    Target,
    any_agent,
    own_agent,
)

JOBS = 4

PROCESSES = 32
"""Enough for every case; fork bombs are among them, whose processes all compute at once."""

CONFIGURATION = f"""
[defaults]
interrupt_grace_seconds = {GRACE_S}
timeout_seconds = 60
processes = {PROCESSES}
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit code: 0 all passed, 1 some failed, 2 it could not be run."""
    options = _parser().parse_args(arguments)
    try:
        cases = _selected(load_all(options.cases), options)
        with _target(options) as target:
            reports = _run(cases, target, options.jobs, verbose=options.verbose)
    except (CaseError, LostAnswerError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.json is not None:
        options.json.write_text(json.dumps(table.as_values(reports), indent=1) + "\n")
    print(table.table(reports))
    failed = table.failures(reports)
    if failed:
        print(f"\n{failed}")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="run.py", description="Run the conformance suite.")
    add = parser.add_argument
    add("--via", choices=["agent", "control", "mcp"], default="agent", help="what is tested")
    add("--agent", metavar="COMMAND", help="another agent; {workspace} becomes its directory")
    add("--python", metavar="PATH", default=sys.executable, help="runs our own agent")
    add("--node", metavar="PATH", help="Node for our own agent")
    add("--bash", metavar="PATH", help="Bash for our own agent")
    add(
        "--env",
        metavar="LANGUAGE=NAME",
        action="append",
        default=[],
        help="environment for a language, with control and mcp",
    )
    add("--socket", metavar="PATH", help="a running supervisor's; else one is started for this")
    add("-k", metavar="TEXT", default="", help="only cases whose file[language] name has it")
    add("--language", choices=LANGUAGES, help="only cases of this language")
    add("--jobs", type=int, default=JOBS, help=f"cases at once ({JOBS})")
    add("--json", metavar="FILE", type=Path, help="write every case's report there")
    add("--cases", metavar="DIRECTORY", type=Path, default=CASES)
    add("-v", "--verbose", action="store_true", help="a line for each case as it ends")
    return parser


def _selected(cases: Sequence[Case], options: argparse.Namespace) -> list[Case]:
    return [
        case for case in cases if options.k in case.id and options.language in {None, case.language}
    ]


def _run(cases: Sequence[Case], target: Target, jobs: int, *, verbose: bool) -> list[Report]:
    def tell(report: Report) -> None:
        print(f"{report.duration_s:6.2f} s  {report.status:14}  {report.case.id}", flush=True)

    def say_nothing(_report: Report) -> None:
        pass

    with ThreadPoolExecutor(jobs) as pool:
        futures = start(cases, target, pool, tell if verbose else say_nothing)
        return [future.result() for future in futures.values()]


@contextmanager
def _target(options: argparse.Namespace) -> Generator[Target]:
    if options.via == "agent":
        yield _agent(options)
        return
    environments: dict[Language, str] = {}
    for pair in options.env:
        language, _, name = pair.partition("=")
        if language not in LANGUAGES or not name:
            raise CaseError(f"--env {pair}: expected LANGUAGE=NAME, e.g. python=science")
        environments[language] = name
    with _supervisor(options.socket) as variables:
        control = ControlTarget(variables["NSM_SOCKET"], environments)
        yield control if options.via == "control" else McpTarget(control, variables)


def _agent(options: argparse.Namespace) -> AgentTarget:
    if options.agent is not None:
        return any_agent(options.agent)
    return own_agent(options.python, options.node, options.bash)


@contextmanager
def _supervisor(socket: str | None) -> Generator[dict[str, Any]]:
    if socket is not None:
        yield {"NSM_SOCKET": socket, "NSM_AUTOSTART": "0"}
        return
    from private_supervisor import NotStartedError, private_supervisor

    try:
        with private_supervisor("nsm-c-", configuration=CONFIGURATION) as variables:
            yield variables
    except NotStartedError as error:
        raise LostAnswerError(str(error)) from None
