"""All that is run for the page: the suite against nsm, then the other clients; and the command."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Awaitable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import trio

from mcpconformance import clients, page, suite
from mcpconformance.clients import LEGACY, MODERN, Seen, Way
from mcpconformance.forwarder import forwarder
from mcpconformance.page import Results, Session
from mcpconformance.suite import Packages, Verdict
from mcpconformance.world import World, world

CONFORMANCE = "@modelcontextprotocol/conformance"
INSPECTOR = "@modelcontextprotocol/inspector"
TYPESCRIPT = {"v1": "@modelcontextprotocol/sdk", "v2": "@modelcontextprotocol/client"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything and keep the results in docs/data; returns the exit code.

    Returns:
        0: nothing failed. 1: something did, or `--check` found other results than those kept. 2: it
        could not be run.
    """
    parser = argparse.ArgumentParser(
        prog="run.py", description="Run MCP's conformance suite and clients; keep the results."
    )
    parser.add_argument("--check", action="store_true", help="compare with the kept results only")
    options = parser.parse_args(arguments)
    try:
        installed = suite.install()
        # A socket's path has at most 107 bytes.
        with tempfile.TemporaryDirectory(prefix="nsm-mcp-", dir="/tmp") as directory:
            results = trio.run(campaign, installed, Path(directory))
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


async def campaign(installed: Packages, directory: Path) -> Results:
    """Run everything.

    Args:
        directory: empty, with a short name.
    """
    (directory / "nsm").mkdir(mode=0o700)
    with world(directory / "nsm") as nsm:
        verdicts = {
            revision: await scenarios(installed, nsm, revision) for revision in suite.REVISIONS
        }
        told = await sessions(installed, nsm, directory)
    return Results(suite=installed.version(CONFORMANCE), verdicts=verdicts, sessions=told)


async def scenarios(installed: Packages, nsm: World, revision: str) -> list[Verdict]:
    """The suite's scenarios of a revision against nsm."""
    _tell(f"the suite, {revision}")
    with tempfile.TemporaryDirectory(prefix="nsm-suite-") as directory:
        async with forwarder(urlsplit(nsm.http.url).netloc, nsm.http.token) as url:
            found = await suite.run(installed, url, revision, Path(directory))
    return [
        suite.judge(scenario, unscored, found[scenario])
        for scenario, unscored in suite.requirements(installed, revision).items()
    ]


async def sessions(installed: Packages, nsm: World, directory: Path) -> list[Session]:
    """Each client over each way in each revision that it speaks."""
    done: list[Session] = []

    async def note(
        client: str, way: Way, revision: str, begin: Awaitable[Seen], *, lasting: bool = True
    ) -> None:
        over = "HTTP" if way.url else "stdio"
        _tell(f"{client}, {over}, {revision}")
        try:
            faults = clients.faults(await begin, revision=revision, lasting=lasting)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is what is to be told
            faults = [f"{type(error).__name__}: {error}"]
        done.append(Session(client=client, way=over, revision=revision, faults=faults))

    for way in (nsm.stdio, nsm.http):
        for revision in (LEGACY, MODERN):
            name = f"Python SDK {clients.python_version()}"
            await note(name, way, revision, clients.by_python(way, revision=revision))
        for sdk, revision in (("v1", LEGACY), ("v2", LEGACY), ("v2", MODERN)):
            package = TYPESCRIPT[sdk]
            name = f"TypeScript SDK, `{package}` {installed.version(package)}"
            session = clients.by_typescript(installed, way, sdk=sdk, revision=revision)
            await note(name, way, revision, session)
        home = directory / ("http" if way.url else "stdio")
        home.mkdir()
        name = f"Inspector {installed.version(INSPECTOR)}, command line"
        session = clients.by_inspector(installed, way, home)
        await note(name, way, LEGACY, session, lasting=False)
    return done


def _tell(line: str) -> None:
    print(line, file=sys.stderr)
