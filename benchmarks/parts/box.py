"""How long a box takes to start, against plain bubblewrap with the same arguments.

The command does nothing; it is timed to its end. The supervisor makes the box's sockets, which the
peer lacks.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest.mock import patch

from bench import BIN, Bench
from measure import Comparison, Findings, LeftOut, Target, alternate_all, timed
from nsm.jail.seccomp import filter_program
from nsmbox import profiles
from nsmbox.host import lookup
from nsmbox.host.facts import BoxRequest
from nsmbox.model.plan import Plan
from nsmbox.planning import bwrap, planning

BWRAP_NAME = "bwrap with the same arguments"

BECOMES = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
FLOOR_NAME = "a Python that becomes bwrap with the same arguments"

CLAUDE = "#!/bin/sh\nexec true\n"
"""In Claude Code's place, which takes a hundred times longer than the box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One way to start a box.

    Attributes:
        name: in the table.
        command: of ours.
        request: the same as values.
        target: None where it is only reported.
    """

    name: str
    command: tuple[str, ...]
    request: BoxRequest
    target: Target | None = None


def measure(bench: Bench) -> Findings:
    """Measure the time to run a command that does nothing, from start to end of the program."""
    if os.geteuid() == 0:
        yield LeftOut(
            what="start of boxes",
            why="they are not for root; run `make bench` as an ordinary user",
        )
        return
    starts = (
        Start(
            name="nsm box -- true, start to end",
            command=(str(BIN / "nsm"), "box", "--yes", "--", "true"),
            request=BoxRequest(profile=profiles.load("shell"), command=("true",)),
            target=Target(bound="≤", value=2.5),
        ),
        Start(
            name="claudebox, start to end of a claude that does nothing",
            command=(str(BIN / "claudebox"), "--yes"),
            request=BoxRequest(profile=profiles.load("claude")),
        ),
    )
    with tempfile.TemporaryDirectory(prefix="nsm-bench-") as path:
        variables = {**home(Path(path)), **bench.variables}
        with chdir(variables["PWD"]), patch.dict(os.environ, variables, clear=True):
            for start in starts:
                yield from against_bwrap(start, variables, rounds=bench.rounds)


def home(directory: Path) -> dict[str, str]:
    """A home directory with a project and a claude in it.

    Returns:
        The variables of who is at home there.
    """
    project, programs = directory / "project", directory / "programs"
    project.mkdir()
    programs.mkdir()
    (programs / "claude").write_text(CLAUDE)
    (programs / "claude").chmod(0o755)
    subprocess.run(["git", "init", "-q", str(project)], check=True)
    return {
        "HOME": str(directory),
        "PATH": f"{programs}:{os.environ.get('PATH', os.defpath)}",
        "PWD": str(project),
    }


def against_bwrap(start: Start, variables: dict[str, str], *, rounds: int) -> Findings:
    """Ours, bwrap alone, and the least that a program in Python takes to become it."""
    run(start.command, variables)  # makes what a box keeps, which the plan below then has
    facts = lookup.look(start.request, variables)
    plan = planning.plan(start.request, facts)
    program = lookup.find_bwrap(variables["PATH"], facts.directory)

    def plain(*before: str) -> float:
        with described(plan) as (listed, descriptors):
            words = (*before, program, "--args", str(listed), "--", *plan.command)
            return timed(partial(run, words, {}, descriptors))

    taken = alternate_all(
        [
            lambda: timed(lambda: run(start.command, variables)),
            plain,
            lambda: plain(sys.executable, "-I", "-S", "-c", BECOMES),
        ],
        rounds=rounds,
    )
    for name, column, target in ((start.name, 0, start.target), (FLOOR_NAME, 2, None)):
        yield Comparison(
            name=name,
            peer=BWRAP_NAME,
            pairs=tuple(zip(taken[column], taken[1], strict=True)),
            unit="ms",
            target=target,
            floor=column == 2,
        )


def run(command: Sequence[str], variables: dict[str, str], descriptors: Sequence[int] = ()) -> None:
    """Run a program to its end, which has to be a good one."""
    subprocess.run(
        command,
        env=variables,
        pass_fds=descriptors,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
    )


@contextmanager
def described(plan: Plan) -> Generator[tuple[int, list[int]]]:
    """The arguments of bwrap for a plan, without sockets, which a supervisor makes.

    Yields:
        The descriptor for `--args`, and all that bwrap has to have: what it reads is read once.
    """
    with ExitStack() as stack:
        descriptors: list[int] = []

        def file(data: bytes) -> int:
            number = os.memfd_create("nsm-bench")
            stack.callback(os.close, number)
            descriptors.append(number)
            os.write(number, data)
            os.lseek(number, 0, os.SEEK_SET)
            return number

        syscalls = filter_program(os.uname().machine)
        lines = bwrap.arguments(plan, file, syscalls=syscalls, sockets="")
        words = [*lines, *bwrap.variables(plan)]
        yield file(b"".join(os.fsencode(word) + b"\0" for word in words)), descriptors
