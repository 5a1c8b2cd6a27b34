"""All that is run for the page: the suite against nsm and its front, then the other clients."""

from __future__ import annotations

import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from http_support import sdk_client
from mcpconformance import clients, suite, world
from mcpconformance.clients import LEGACY, MODERN, Seen, Way
from mcpconformance.forwarder import forwarder
from mcpconformance.page import FRONT, NSM, Results, Row, Session
from mcpconformance.suite import Check, Packages
from mcpconformance.verdicts import Offer, judge

CONFORMANCE = "@modelcontextprotocol/conformance"
INSPECTOR = "@modelcontextprotocol/inspector"
TYPESCRIPT = {"v1": "@modelcontextprotocol/sdk", "v2": "@modelcontextprotocol/client"}

Tell = Callable[[str], None]
Checks = Mapping[str, Sequence[Check]]


async def campaign(installed: Packages, directory: Path, tell: Tell) -> Results:
    """Run everything.

    Args:
        directory: empty, with a short name.
        tell: hears what is done, a line for each.
    """
    for name in ("nsm", "front"):
        (directory / name).mkdir(mode=0o700)
    with world.world(directory / "nsm") as nsm:
        async with world.front(directory / "front") as front:
            rows = await scenarios(installed, {NSM: nsm.http, FRONT: front}, tell)
        told = await sessions(installed, nsm, directory, tell)
    return Results(suite=installed.version(CONFORMANCE), rows=rows, sessions=told)


async def scenarios(
    installed: Packages, columns: Mapping[str, world.Served], tell: Tell
) -> dict[str, list[Row]]:
    """The suite's scenarios of each revision against each of these servers."""
    offers = {name: await offer_of(served) for name, served in columns.items()}
    rows: dict[str, list[Row]] = {}
    for revision in suite.REVISIONS:
        found: dict[str, Checks] = {}
        for name, served in columns.items():
            tell(f"the suite, {revision}: {name}")
            found[name] = await run_suite(installed, served, revision)
        rows[revision] = [
            Row(
                required=required,
                verdicts={
                    name: judge(required, found[name][required.name], offers[name])
                    for name in columns
                },
            )
            for required in suite.requirements(installed, revision)
        ]
    return rows


async def run_suite(installed: Packages, served: world.Served, revision: str) -> Checks:
    """The suite against an endpoint that wants a token."""
    with tempfile.TemporaryDirectory(prefix="nsm-suite-") as directory:
        async with forwarder(*served.address, served.token) as url:
            return await suite.run(installed, url, revision, Path(directory))


async def offer_of(served: world.Served) -> Offer:
    """Read what a server offers."""
    async with sdk_client(served.url, served.token) as client:
        capabilities = client.server_capabilities.model_dump(by_alias=True, exclude_none=True)
        tools = (await client.list_tools()).tools
    return Offer(
        tools=[tool.name for tool in tools],
        capabilities=[*capabilities, *capabilities.get("extensions", {})],
    )


async def sessions(
    installed: Packages, nsm: world.World, directory: Path, tell: Tell
) -> list[Session]:
    """Each client over each way in each revision that it speaks."""
    done: list[Session] = []

    async def note(
        client: str, way: Way, revision: str, begin: Awaitable[Seen], *, lasting: bool = True
    ) -> None:
        over = "HTTP" if way.url else "stdio"
        tell(f"{client}, {over}, {revision}")
        try:
            faults = clients.faults(await begin, revision=revision, lasting=lasting)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong is what is to be told
            faults = [f"{type(error).__name__}: {error}"]
        done.append(Session(client=client, way=over, revision=revision, faults=faults))

    for way in (nsm.stdio, nsm.http.way()):
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
