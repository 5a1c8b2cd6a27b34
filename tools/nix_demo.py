"""Show a Nix environment that comes to a connected client, where there is no binary cache.

A user's flake (nix/tests/example) is built with the stand-ins of tools/standin.py into the sandbox
directory of a supervisor that runs for the demonstration only, while the MCP SDK's own client is
connected. Nothing is restarted, and nothing is left running.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import trio
from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import Implementation, TextContent
from mcp_types import ToolListChangedNotification

import nsm
import standin
from demo import BIN, DemoError, Style, cause, heading, report, show
from hostseed import SeedError
from private_supervisor import private_supervisor

EXAMPLE = standin.ROOT / "nix/tests/example"
ENVIRONMENT = "data-science"
NOTICE_TIMEOUT_S = 20.0  # the supervisor watches the directory, so that it is a moment

STEPS = (
    ("its Python", "import sys; print(sys.executable)"),
    (
        "its packages",
        "import yaml; total = sum(yaml.safe_load('[1, 2, 39]')); print(yaml.__name__)",
    ),
    ("state is kept", "print(total)"),
    ("no /usr in the jail", "import os; print(*sorted(os.listdir('/')))"),
    ("no network", "import socket; print(*(name for _, name in socket.if_nameindex()))"),
)


class Notices:
    """Notifications to the client that the list of tools has changed."""

    def __init__(self) -> None:
        self._changed = trio.Event()

    async def hear(self, message: object) -> None:
        """Take any message of the server's."""
        if isinstance(message, ToolListChangedNotification):
            self._changed.set()

    async def wait(self) -> None:
        """Wait until there was a change, since the last wait.

        Raises:
            DemoError: there was none for long.
        """
        with trio.move_on_after(NOTICE_TIMEOUT_S) as scope:
            await self._changed.wait()
        if scope.cancelled_caught:
            raise DemoError("the client was not told that there is something new")
        self._changed = trio.Event()


async def demonstrate(style: Style, variables: Mapping[str, str], log: Path) -> None:
    """Connect, build beside it, and run code in what was built."""
    command = StdioServerParameters(command=str(BIN / "nsm-mcp"), env=dict(variables), cwd="/")
    link = Path(variables["XDG_CONFIG_HOME"], "nsm/sandboxes", ENVIRONMENT)
    link.parent.mkdir(parents=True)
    notices = Notices()
    client_info = Implementation(name="demo", version=nsm.__version__)
    with log.open("w") as errors:
        async with Client(
            stdio_client(command, errlog=errors),
            mode="legacy",
            client_info=client_info,
            message_handler=notices.hear,
        ) as client:
            heading(style, "A client is connected; the tool's description has")
            await show_environments(client)
            heading(style, f"{EXAMPLE.relative_to(standin.ROOT)}#{ENVIRONMENT} is built")
            await trio.to_thread.run_sync(build, style, link)
            await notices.wait()
            heading(style, "The client is told that the tool has changed, and reads")
            await show_environments(client)
            heading(style, f"It runs code in {ENVIRONMENT}")
            for title, code in STEPS:
                await step(style, client, title, code)
            heading(style, "The link is removed, and the client is told")
            await trio.to_thread.run_sync(link.unlink)
            await notices.wait()
            await show_environments(client)


def build(style: Style, link: Path) -> None:
    """Build the example's environment; blocks."""
    place = standin.default_place()
    started_s = time.perf_counter()
    standin.prepare(place)
    path = standin.build(place, ENVIRONMENT, link, user_flake=EXAMPLE)
    show(style, "nix build", str(path), time.perf_counter() - started_s)


async def show_environments(client: Client) -> None:
    """The lines about environments in what the client is told of the tool."""
    (tool,) = (await client.list_tools()).tools
    for line in (tool.description or "").splitlines():
        if line.startswith("- "):
            print(f"  {line}")


async def step(style: Style, client: Client, title: str, code: str) -> None:
    """One call in the session, and what it printed.

    Raises:
        DemoError: the code failed.
    """
    started_s = time.perf_counter()
    arguments = {"env": ENVIRONMENT, "code": code, "session": "nix"}
    result = await client.call_tool("run", arguments)
    text = "".join(item.text for item in result.content if isinstance(item, TextContent))
    if result.is_error:
        raise DemoError(f"{title}: {text}")
    lines = [line for line in text.splitlines() if not line.startswith("[session ")]
    show(style, title, "\n".join(lines), time.perf_counter() - started_s)


def main() -> int:
    """Run it. Returns the exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    style = Style.for_stdout()
    started_s = time.perf_counter()
    print(f"{style.bold}nsm {nsm.__version__}{style.off} with Nix, without a binary cache")
    try:
        standin.find_nix()
        with private_supervisor("nsm-demo-") as variables:
            log = Path(variables["NSM_SOCKET"]).with_name("nsm-mcp.log")
            trio.run(demonstrate, style, variables, log)
        print(f"\nDone in {time.perf_counter() - started_s:.1f} s; nothing is left running.")
        print("For your own clients, with the supervisor that you have:")
        command = [
            "tools/standin.py",
            "build",
            ENVIRONMENT,
            f"~/.config/nsm/sandboxes/{ENVIRONMENT}",
        ]
        print(f"  .venv/bin/python {' '.join(command)} --flake {EXAMPLE.relative_to(standin.ROOT)}")
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - report() raises what it does not know
        why = cause(error)
        if isinstance(why, SeedError | standin.StandInError):
            why = DemoError(str(why))
        elif isinstance(why, subprocess.CalledProcessError):
            why = DemoError(f"{why.cmd[0]} failed; it said why above")
        return report(why)
    return 0


if __name__ == "__main__":
    sys.exit(main())
