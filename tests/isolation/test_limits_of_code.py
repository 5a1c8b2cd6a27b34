"""Limits that the host's user may have and code in a session must not."""

from __future__ import annotations

import resource
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import pytest

from isolation.probe import Kind
from isolation.weakjails import forking
from realjail import environments, jail_spec, launched, needs_bwrap, new_launcher, talking_to

pytestmark = [pytest.mark.jail, needs_bwrap]

BOTH_KINDS = pytest.mark.parametrize("kind", ["cold", "forked"])


@contextmanager
def generous_host(wanted: Mapping[int, int]) -> Generator[None]:
    """The limits of whoever starts jails, raised."""
    before = {kind: resource.getrlimit(kind) for kind in wanted}
    try:
        for kind, value in wanted.items():
            hard = before[kind][1]
            raised = hard if hard == resource.RLIM_INFINITY else max(value, hard)
            try:
                resource.setrlimit(kind, (value, raised))
            except ValueError:
                pytest.skip("not here: raising limits takes CAP_SYS_RESOURCE")
        yield
    finally:
        for kind, limits in before.items():
            resource.setrlimit(kind, limits)


async def said(kind: Kind, code: str) -> str:
    environment = environments()["python"]
    async with forking(new_launcher()) as launcher:
        one = new_launcher() if kind == "cold" else launcher
        async with (
            launched(one, jail_spec(environment)) as jail,
            talking_to(jail, "python") as session,
        ):
            outcome = await session.run(code)
    assert not outcome.stderr
    return outcome.stdout


CORE = """
import os, resource, signal
print(*resource.getrlimit(resource.RLIMIT_CORE))
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), signal.SIGQUIT)
print(os.WCOREDUMP(os.waitpid(pid, 0)[1]))
"""


@BOTH_KINDS
async def test_the_host_s_program_for_crashes_is_not_run(kind: Kind) -> None:
    """0 keeps the kernel from writing core files and no more; 1 is read as "none" (core(5))."""
    with generous_host({resource.RLIMIT_CORE: 1 << 20}):
        assert await said(kind, CORE) == "1 1\nFalse\n"


RLIMIT_NICE = 13
"""`resource` has no name for it."""

FIRST = f"""
import os, resource
print(*resource.getrlimit(resource.RLIMIT_RTPRIO), *resource.getrlimit({RLIMIT_NICE}))
def tried(action, *arguments):
    pid = os.fork()
    if pid == 0:
        try:
            action(*arguments)
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(tried(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1)), tried(os.nice, -5))
"""


@BOTH_KINDS
async def test_nobody_comes_before_the_machine_s_own(kind: Kind) -> None:
    """A host's user who works with sound may take a processor for himself."""
    with generous_host({resource.RLIMIT_RTPRIO: 10, RLIMIT_NICE: 30}):
        assert await said(kind, FIRST) == "0 0 0 0\n1 1\n"
