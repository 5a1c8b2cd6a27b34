"""Forks of one template: nothing of one is found in another, nor anything of the template."""

from __future__ import annotations

import errno
import json
import os
import resource
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import pytest
import trio

from isolation.background import Background
from isolation.probes_siblings import PRELUDE, SECRETS, Secret
from isolation.stage import open_stage
from isolation.weaken import MOUNTS_AS_THEY_COME, Weakness, without
from isolation.weakjails import WeakLauncher, forking
from nsmd.jail import BwrapLauncher, Launcher
from nsmd.jail.templates import TemplateLauncher, open_templates
from nsmd.model.limits import session_limits
from nsmd.model.settings import Settings
from nsmd.model.values import Environment, SessionLimits
from realjail import (
    LiveSession,
    environments,
    is_fork,
    jail_spec,
    launched,
    needs_bwrap,
    new_launcher,
    talking_to,
)
from sandbox.template.session import reseed

pytestmark = [pytest.mark.jail, needs_bwrap]


@pytest.fixture(scope="module")
def python() -> Environment:
    return environments()["python"]


@asynccontextmanager
async def fork_of(
    launcher: Launcher, environment: Environment
) -> AsyncGenerator[LiveSession, None]:
    """A session that is a fork for certain."""
    async with launched(launcher, jail_spec(environment)) as jail:
        assert is_fork(jail)
        async with talking_to(jail, environment.interpreter) as session:
            yield session


async def said(session: LiveSession, code: str) -> str:
    """Run code that must not fail, and return its output."""
    outcome = await session.run(code)
    assert (outcome.exit_code, outcome.stderr) == (0, ""), outcome.stderr
    return outcome.stdout.strip()


async def family(
    cold: BwrapLauncher, environment: Environment, secrets: tuple[Secret, ...]
) -> dict[str, list[str]]:
    """Collect what a session finds of its own data, and what an earlier and a later sibling
    find."""
    found: dict[str, list[str]] = {}
    async with (
        forking(cold) as launcher,
        fork_of(launcher, environment) as older,
        fork_of(launcher, environment) as owner,
    ):
        for secret in secrets:
            await said(owner, PRELUDE + secret.plant)
        async with fork_of(launcher, environment) as younger:
            for secret in secrets:
                found[secret.name] = [
                    await said(session, PRELUDE + secret.find)
                    for session in (owner, older, younger)
                ]
    return found


@pytest.fixture(scope="module")
def found(python: Environment) -> dict[str, list[str]]:
    return trio.run(family, new_launcher(), python, SECRETS)


SECRET = pytest.mark.parametrize("secret", SECRETS, ids=lambda secret: secret.name)


@SECRET
def test_siblings_find_nothing(secret: Secret, found: dict[str, list[str]]) -> None:
    _, older, younger = found[secret.name]
    assert (older, younger) == ("NOTHING", "NOTHING")


@SECRET
def test_the_session_itself_finds_it(secret: Secret, found: dict[str, list[str]]) -> None:
    assert found[secret.name][0].startswith("FOUND: ")


@pytest.mark.slow
@pytest.mark.parametrize(
    "secret", [secret for secret in SECRETS if secret.shared], ids=lambda secret: secret.name
)
async def test_siblings_find_what_they_share(secret: Secret, python: Environment) -> None:
    options = [secret.shared_without] if secret.shared_without else []
    weakness = Weakness(
        template=MOUNTS_AS_THEY_COME + secret.shared,
        arguments=without(*options) if options else lambda words, _: words,
    )
    with open_stage() as stage:
        found = await family(WeakLauncher(weakness, stage), python, (secret,))
    assert all(words.startswith("FOUND: ") for words in found[secret.name]), found


@dataclass(frozen=True, slots=True)
class Siblings:
    """Two forks of one template, and what forks more."""

    first: LiveSession
    second: LiveSession
    launcher: TemplateLauncher
    environment: Environment


@pytest.fixture
def siblings(
    background: Background, python: Environment
) -> Callable[[Callable[[Siblings], Awaitable[None]]], None]:
    """Run a check with two siblings; all checks' are forks of the same template."""

    async def with_two(check: Callable[[Siblings], Awaitable[None]]) -> None:
        launcher = await background.kept("launcher", "siblings", partial(forking, new_launcher()))
        assert isinstance(launcher, TemplateLauncher)
        async with fork_of(launcher, python) as first, fork_of(launcher, python) as second:
            await check(Siblings(first, second, launcher, python))

    def run(check: Callable[[Siblings], Awaitable[None]]) -> None:
        background.run(with_two, check)

    return run


Check = Callable[[Callable[[Siblings], Awaitable[None]]], None]

NAMES = "import json, os; print(json.dumps({n: os.readlink(f'/proc/self/ns/{n}') for n in %r}))"


def test_each_has_all_namespaces_for_itself(siblings: Check) -> None:
    kinds = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")

    async def check(it: Siblings) -> None:
        look = NAMES % (kinds,)
        told = [json.loads(await said(session, look)) for session in (it.first, it.second)]
        host = {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in kinds}
        for kind in kinds:
            assert len({names[kind] for names in [*told, host]}) == 3, kind

    siblings(check)


DESCRIPTORS = """
import os
for fd in os.listdir("/proc/self/fd"):
    try:
        print(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        pass
"""


def test_no_descriptor_is_shared(siblings: Check) -> None:
    async def check(it: Siblings) -> None:
        first = set((await said(it.first, DESCRIPTORS)).split())
        second = set((await said(it.second, DESCRIPTORS)).split())
        shared = {link for link in first & second if not link.startswith("/proc/")}
        assert shared == {"/dev/null"}

    siblings(check)


LINEAGE = """
fields = dict(line.split(":", 1) for line in open("/proc/1/status"))
print(fields["PPid"].strip(), fields["NSpid"].split(), open("/proc/net/unix").read().count("@"))
"""


def test_the_template_is_nobody_s_parent(siblings: Check) -> None:
    """PID 1 has no parent that code could name, and no name of another socket is seen."""

    async def check(it: Siblings) -> None:
        assert await said(it.first, LINEAGE) == "0 ['1'] 0"

    siblings(check)


EVERY_SIGNAL = """
import os, signal
for number in range(1, 65):
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        try:
            signal.signal(number, signal.SIG_IGN)
        except (OSError, ValueError):
            pass
for number in range(1, 65):
    for target in (1, -1):
        try:
            os.kill(target, number)
        except OSError:
            pass
print("sent")
"""


def test_signals_reach_neither_agent_nor_sibling_nor_template(siblings: Check) -> None:
    async def check(it: Siblings) -> None:
        pid = await said(it.second, PRELUDE + SECRETS[0].plant + "print(child.pid)")
        assert await said(it.first, EVERY_SIGNAL) == "sent"
        assert await said(it.first, "print(1)") == "1"
        assert await said(it.second, f"import os; os.kill({pid}, 0); print(2)") == "2"
        forks = it.launcher.templates[0].forks
        async with fork_of(it.launcher, it.environment) as third:
            assert await said(third, "print(3)") == "3"
        assert it.launcher.templates[0].forks == forks + 1

    siblings(check)


MANY_PROCESSES = """
import os, resource
resource.setrlimit(resource.RLIMIT_NPROC, (30, 30))
children = []
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        os.read(os.pipe()[0], 1)
    children.append(pid)
print(len(children))
"""


def test_processes_are_counted_for_each(siblings: Check) -> None:
    """getrlimit(2): before Linux 5.14 they are counted for the host's user."""
    if tuple(map(int, os.uname().release.split(".")[:2])) < (5, 14):
        pytest.skip("not here: limits of processes by user namespace, of Linux 5.14")

    async def check(it: Siblings) -> None:
        for session in (it.first, it.second):
            assert await said(session, MANY_PROCESSES) == "20"
            # Else this shows nothing.
            outcome = await session.run(MANY_PROCESSES.replace("(30, 30)", "(25, 25)"))
            assert "BlockingIOError" in outcome.stderr

    siblings(check)


IN_FLIGHT = """
import array, os, socket
fd = os.open("/dev/null", os.O_RDONLY)
pairs, sent = [], 0
try:
    while sent < 100_000:
        pairs.append(socket.socketpair())
        for _ in range(8):
            pairs[-1][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                                           array.array("i", [fd] * 250))])
            sent += 250
except OSError as error:
    print(error.errno, sent)
"""


@pytest.fixture
def few_descriptors() -> Generator[None, None, None]:
    """Limit the descriptors of this process, which is the supervisor's side."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1100, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.alone  # sessions of other workers could send none, either
@pytest.mark.usefixtures("few_descriptors")
@pytest.mark.parametrize(
    "bounded",
    [
        True,
        pytest.param(
            False,
            marks=pytest.mark.skipif(
                os.geteuid() == 0, reason="not here: needs a user who may not send more than that"
            ),
        ),
    ],
)
async def test_descriptors_in_flight_do_not_keep_others_from_starting(
    bounded: bool, python: Environment
) -> None:
    """unix(7): the kernel counts them for the host's user, in all sessions."""
    limits = session_limits(Settings()) if bounded else SessionLimits(descriptors=1024)
    async with open_templates(new_launcher(limits)) as launcher, fork_of(launcher, python) as hog:
        number, sent = (await said(hog, IN_FLIGHT)).split()
        assert number == str(errno.ETOOMANYREFS)
        assert int(sent) >= 250
        async with launched(launcher, jail_spec(python)) as other:
            assert is_fork(other) is bounded


DRAW = "import ssl; print(ssl.RAND_bytes(16).hex())"
SEEDED = """
import ssl
ssl.RAND_bytes(1)
"""
COLLIDING = SEEDED + 'space["leave_low_pids"] = lambda pid: None\n'


async def drawn(patch: str, python: Environment) -> list[str]:
    """Draw from OpenSSL in two forks of a template that has drawn random numbers itself."""
    with open_stage() as stage:
        weak = WeakLauncher(Weakness(template=patch), stage)
        async with (
            forking(weak) as launcher,
            fork_of(launcher, python) as first,
            fork_of(launcher, python) as second,
        ):
            return [await said(first, DRAW), await said(second, DRAW)]


async def test_openssl_sees_a_fork_by_its_pid(python: Environment) -> None:
    first, second = await drawn(SEEDED, python)
    assert first != second
    first, second = await drawn(COLLIDING, python)
    assert first == second


def test_numpy_is_seeded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Random:
        seeded = 0

        def seed(self) -> None:
            self.seeded += 1

    random = Random()
    monkeypatch.setitem(sys.modules, "numpy.random", random)
    reseed()
    assert random.seeded == 1


def test_siblings_share_what_the_page_on_security_lists(siblings: Check) -> None:
    """docs/explanation/security.md lists what siblings share: if one ends, say so there."""

    async def check(it: Siblings) -> None:
        look = "import sys; print(hash('a'), id(sys.modules))"
        assert await said(it.first, look) == await said(it.second, look)
        hold = "import fcntl; held = open('/usr/bin/env'); fcntl.flock(held, fcntl.LOCK_EX)"
        await said(it.first, hold)
        outcome = await it.second.run(hold.replace("LOCK_EX", "LOCK_EX | fcntl.LOCK_NB"))
        assert "BlockingIOError" in outcome.stderr

    siblings(check)
