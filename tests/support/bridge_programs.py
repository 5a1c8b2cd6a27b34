"""Programs of the host that tests have the bridge run."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nsmd.bridge.commands import Command
from nsmd.bridge.monitor import STEP_S
from nsmd.bridge.programs import Program
from nsmd.bridge.running import Stop, run, variables_of
from rungates import RUN_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from nsmd.bridge.programs import OnLine, ProgramEnd

OUTPUT_BYTES = 20_000

LONG_S = 60.0


@contextmanager
def opened(path: str) -> Generator[Command]:
    """Open a command as `nsmd.bridge.commands` does, without its checks."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        way = (found.st_dev, found.st_ino, found.st_ctime_ns)
        script = os.pread(fd, 2, 0) == b"#!"
        yield Command(fd, path, ((path, way),), script=script)
    finally:
        os.close(fd)


def script(path: Path, text: str) -> str:
    """Write an executable script; its path."""
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def program(command: str, **more: Any) -> Program:
    """A program, as a definition would describe it."""
    facts: dict[str, Any] = {"timeout_s": LONG_S, "env": (RUN_VARIABLE,), **more}
    return Program(
        name="tool", description="", documentation="", source="/tool.md", command=command, **facts
    )


class Told:
    """Collects lines.

    Attributes:
        lines: of each stream.
    """

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {"stdout": [], "stderr": []}

    def __call__(self, stream: str, line: str) -> None:
        self.lines[stream].append(line)


def _ignored(_stream: str, _line: str) -> None:
    pass


async def outcome(
    command: str,
    arguments: Sequence[str] = (),
    *,
    on_line: OnLine = _ignored,
    stop: Stop | None = None,
    step_s: float = STEP_S,
    output_bytes: int = OUTPUT_BYTES,
    variables: dict[str, str] | None = None,
    **more: Any,
) -> ProgramEnd:
    """Run a command to its end, as the bridge does."""
    described = program(command, **more)
    with opened(command) as found:
        return await run(
            found,
            described,
            arguments,
            variables=variables or variables_of(described, os.environ),
            output_bytes=output_bytes,
            on_line=on_line,
            stop=stop or Stop(),
            step_s=step_s,
        )


async def outcome_of_shell(code: str, **more: Any) -> ProgramEnd:
    """Run a piece of shell code, with what `outcome` takes."""
    return await outcome("/bin/sh", ["-c", code], **more)
