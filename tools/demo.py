"""Show nsm's main job on this repository, through nsm-mcp and the MCP SDK's own client.

    demo.py [DIRECTORY]     on another one that has Python tests and pages in Markdown

A supervisor is started for the demonstration only, so that a real one is neither used nor
disturbed, and ended however this ends.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import trio
from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import Implementation, TextContent

import nsm
from demo_steps import PARTS, Part, Step
from nsm.setup.agents import TITLES
from nsm.wire.errors import NsmError
from private_supervisor import NotStartedError, private_supervisor

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


class DemoError(Exception):
    """Something did not work; the message is what a person needs to see."""


# What is printed


@dataclass(frozen=True, slots=True)
class Style:
    """ANSI sequences, or nothing where the output is not a terminal."""

    bold: str = ""
    dim: str = ""
    off: str = ""

    @classmethod
    def for_stdout(cls) -> Style:
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
        if plain or not sys.stdout.isatty():
            return cls()
        return cls(bold="\x1b[1m", dim="\x1b[2m", off="\x1b[0m")


TITLE_WIDTH = 24


def heading(style: Style, text: str, detail: str = "") -> None:
    """A line that begins a part."""
    print(f"\n{style.bold}{text}{style.off}{'  ' + detail if detail else ''}")


def show(style: Style, title: str, output: str, took_s: float) -> None:
    """One call: its title, what it printed, and how long it took."""
    first, *rest = output.splitlines() or [""]
    print(f"  {title:{TITLE_WIDTH}}{style.dim}{took_s * 1000:4.0f} ms{style.off}  {first}")
    for line in rest:
        print(f"  {'':{TITLE_WIDTH}}         {line}")


def show_configuration(style: Style) -> None:
    """The command that puts nsm into an editor."""
    heading(style, "To use it, give it to your editor:")
    print(f"  {shlex.quote(str(BIN / 'nsm'))} setup CLIENT")
    print(f"    CLIENT is one of {', '.join(TITLES)}")
    print("  Another MCP client")
    print(f"    {json.dumps({'mcpServers': {'nsm': {'command': str(BIN / 'nsm-mcp')}}})}")


# The demonstration


@contextmanager
def shown_project(original: Path) -> Generator[Path]:
    """The directory; a copy of its files where root's jails, which are not root's, can't read it.

    That is a clone made by root with umask 077.
    """
    a_file = next((path for path in original.iterdir() if path.is_file()), original)
    if os.geteuid() != 0 or all(path.stat().st_mode & 0o004 for path in (original, a_file)):
        yield original
        return
    with tempfile.TemporaryDirectory(prefix="nsm-demo-") as directory:
        copy = Path(directory, original.name)
        ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist")
        shutil.copytree(original, copy, ignore=ignored, copy_function=shutil.copyfile)
        Path(directory).chmod(0o755)
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        print("(a copy: the user that jails of root run as can't read the original)")
        yield copy


async def demonstrate(style: Style, variables: Mapping[str, str], project: Path, log: Path) -> None:
    """Attach like an editor, and run every part that this machine has an interpreter for."""
    command = StdioServerParameters(
        command=str(BIN / "nsm-mcp"), env={**variables, "PROJECT_DIR": str(project)}, cwd=project
    )
    problems = unavailable(variables)
    client_info = Implementation(name="demo", version=nsm.__version__)
    with log.open("w") as errors:
        async with Client(stdio_client(command, errlog=errors), client_info=client_info) as client:
            for part in PARTS:
                await run_part(style, client, part, problems.get(part.env))
            show_sessions(style, variables)


def unavailable(variables: Mapping[str, str]) -> dict[str, str]:
    """Environments that cannot be used on this machine, and why."""
    with nsm.Client(socket_path=variables["NSM_SOCKET"], autostart=False) as client:
        return {row.name: row.problem or "unknown" for row in client.envs() if not row.available}


async def run_part(style: Style, client: Client, part: Part, problem: str | None) -> None:
    """All calls of one session, in order."""
    where = f"session '{part.session}'" if part.session else "a fresh jail, thrown away"
    heading(style, f"{part.env}: {part.heading}", f"{style.dim}({where}){style.off}")
    if problem is not None:
        print(f"  left out: {problem}")
        return
    for step in part.steps:
        started_s = time.perf_counter()
        output = await call(client, part, step)
        show(style, step.title, output, time.perf_counter() - started_s)


async def call(client: Client, part: Part, step: Step) -> str:
    """One call of the tool; what the code printed.

    Raises:
        DemoError: the code failed.
    """
    arguments = {"env": part.env, "code": step.code}
    if part.session is not None:
        arguments["session"] = part.session
    result = await client.call_tool("run", arguments)
    text = "".join(item.text for item in result.content if isinstance(item, TextContent))
    if result.is_error:
        raise DemoError(f"{part.env}, {step.title}: {text}")
    # For a model: that the session is new. Here the heading says it.
    return "\n".join(
        line for line in text.splitlines() if not line.startswith(("[session ", "[exit code 0]"))
    )


def show_sessions(style: Style, variables: Mapping[str, str]) -> None:
    """Show the output of `nsm ps` while the sessions live."""
    heading(style, "nsm ps")
    done = subprocess.run(
        [str(BIN / "nsm"), "ps"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise DemoError(f"nsm ps: {done.stderr.strip()}")
    for line in done.stdout.splitlines():
        print(f"  {line}".rstrip())


def main() -> int:
    """Run it. Returns the exit code."""
    # trio turns SIGINT into KeyboardInterrupt where that is safe; being ended is the same to us.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: signal.raise_signal(signal.SIGINT))
    style = Style.for_stdout()
    started_s = time.perf_counter()
    print(f"{style.bold}nsm {nsm.__version__}{style.off}, used through nsm-mcp as an editor would")
    original = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    print(f"{original} is at /project in every jail, read-only")
    try:
        with shown_project(original) as project, private_supervisor("nsm-demo-") as variables:
            log = Path(variables["NSM_SOCKET"]).with_name("nsm-mcp.log")
            trio.run(demonstrate, style, variables, project, log)
        show_configuration(style)
        print(f"\nDone in {time.perf_counter() - started_s:.1f} s; nothing is left running.")
        sys.stdout.flush()
    except BaseException as error:  # noqa: BLE001 - report() raises what it does not know
        return report(cause(error))
    return 0


def cause(error: BaseException) -> BaseException:
    """Unwrap the cause of an error from the exception groups of nurseries."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def report(error: BaseException) -> int:
    """Say why the demonstration ended early. Returns the exit code."""
    match error:
        case KeyboardInterrupt():
            print("\ninterrupted; nothing is left running", file=sys.stderr)
            return 130
        case BrokenPipeError():  # `make run | head`; nobody reads what Python would flush at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return 141
        case DemoError() | NsmError() | NotStartedError():
            hint = f"`{shlex.quote(str(BIN / 'nsm'))} doctor` looks for causes."
            print(f"\ndemo: {error}\n{hint}", file=sys.stderr)
            return 1
        case _:
            raise error


if __name__ == "__main__":
    sys.exit(main())
