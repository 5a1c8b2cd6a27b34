"""Templates that cannot be made or cannot fork: real ones, and what becomes of their sessions."""

from __future__ import annotations

import select
import signal
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from nsm.wire.errors import StartFailedError
from nsmd.jail import BwrapLauncher, starting
from nsmd.jail.arguments import TemplateSpec
from nsmd.jail.process import Jail
from nsmd.jail.templates import TemplateLauncher, launcher, open_templates, template
from nsmd.jail.templates import spec as template_spec
from nsmd.jail.templates.spec import request_for
from nsmd.model.policy import Policy, policy_of
from nsmd.model.values import Environment, JailSpec, ProjectMount, SessionLimits
from realjail import (
    environments,
    is_fork,
    jail_spec,
    mount_of,
    needs_bwrap,
    new_launcher,
    open_directory,
    open_session,
)

pytestmark = [pytest.mark.jail, needs_bwrap]


@pytest.fixture(scope="module")
def found() -> dict[str, Environment]:
    return environments()


@pytest.fixture
def python(found: dict[str, Environment]) -> Environment:
    return found["python"]


@asynccontextmanager
async def open_launcher(cold: BwrapLauncher | None = None) -> AsyncGenerator[TemplateLauncher]:
    async with open_templates(cold or new_launcher()) as made:
        assert isinstance(made, TemplateLauncher)
        yield made


async def test_sessions_that_wait_for_one_template_share_its_failure(
    python: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each would try in turn, and count as another failure in a row."""
    tried = 0

    async def count(cold: BwrapLauncher, spec: TemplateSpec, system_calls: bytes) -> object:
        nonlocal tried
        tried += 1
        return await template.start_template(cold, spec, system_calls)

    monkeypatch.setattr(launcher, "start_template", count)
    with preloadable(python, "import os; os.abort()") as (broken, project):
        async with open_launcher() as forking, trio.open_nursery() as nursery:

            async def start() -> None:
                async with open_session(broken, project, launcher=forking) as session:
                    assert not is_fork(session.jail)

            for _ in range(3):
                nursery.start_soon(start)
    assert tried == 1


@contextmanager
def preloadable(
    python: Environment, source: str
) -> Generator[tuple[Environment, ProjectMount], None, None]:
    """An environment that preloads a module, and the project in which it finds it."""
    # A project's place is known: Python finds it there by a .pth-less path of its own.
    places = ("/usr/local/lib/python3.11/dist-packages", "/usr/lib/python3/dist-packages")
    paths = [path for path in places if Path(path).is_dir()]
    if not paths:
        pytest.skip("not here: this Python has no directory outside its own tree")
    with open_directory() as directory:
        package = directory / "lib"
        package.mkdir(mode=0o755)
        (package / "unforkable.py").write_text(source)
        yield (
            replace(python, name="unforkable", preload=("unforkable",)),
            mount_of(package, paths[0]),
        )


async def test_what_hangs_while_it_is_preloaded_is_named(
    python: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    with preloadable(python, "import time; time.sleep(3600)") as (hanging, project):
        async with open_launcher() as forking:
            with monkeypatch.context() as patched:
                patched.setattr(starting, "SPEAK_TIMEOUT_S", 0.2)
                await forking.prepare(jail_spec(hanging, project))
            async with open_session(hanging, project, launcher=forking) as session:
                assert not is_fork(session.jail)
            assert "template, which imports unforkable, said" in forking.reasons["unforkable"]


async def limit_processes(made: template.Template, limit: str) -> None:
    """Set the soft limit of a template.

    By the user whose process it is; root in a container may lack the capability.
    """
    pid = next(
        line.split()[1]
        for line in Path(f"/proc/self/fdinfo/{made.pidfd}").read_text().splitlines()
        if line.startswith("Pid:")
    )
    credentials = new_launcher().user.credentials()
    code = (
        "import resource as r, sys; pid = int(sys.argv[1]);"
        f" r.prlimit(pid, r.RLIMIT_NPROC, ({limit}, r.prlimit(pid, r.RLIMIT_NPROC)[1]))"
    )
    await trio.run_process(
        [made.spec.agent_python, "-c", code, pid],
        user=credentials.user,
        group=credentials.group,
        extra_groups=credentials.extra_groups,
        check=True,
    )


NO_FORK = "1"
AS_BEFORE = "r.prlimit(pid, r.RLIMIT_NPROC)[1]"
NO_ROOM = "clone: Resource temporarily unavailable"


async def test_without_room_for_a_process_the_call_is_told_and_the_template_stays(
    python: Environment,
) -> None:
    """A jail of its own would take more of what is short."""
    async with open_launcher() as forking, open_session(python, launcher=forking) as session:
        [made] = forking.templates
        await limit_processes(made, NO_FORK)
        with pytest.raises(StartFailedError, match=NO_ROOM) as told:
            await forking.launch(jail_spec(python))
        assert "nsm kill" in told.value.hint
        assert (await session.run("print(1)")).stdout == "1\n"
        await limit_processes(made, AS_BEFORE)
        async with open_session(python, launcher=forking) as other:
            assert is_fork(other.jail)
        assert forking.templates == [made]


async def test_a_step_that_fails_is_told(
    python: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(spec: JailSpec, limits: SessionLimits, policy: Policy) -> bytes:
        asked = request_for(spec, limits, policy)
        return asked.replace(b'"hostname": "', b'"hostname": "' + b"n" * 80)

    monkeypatch.setattr(template_spec, "request_for", ask)
    async with open_launcher() as forking:
        async with open_session(python, launcher=forking) as session:
            assert not is_fork(session.jail)
        assert "Invalid argument" in forking.reasons["python"]


async def test_a_fork_that_fails_when_nobody_waits_for_it_any_more(python: Environment) -> None:
    async with open_launcher() as forking, open_session(python, launcher=forking):
        [made] = forking.templates
        await limit_processes(made, NO_FORK)
        signal.pidfd_send_signal(made.pidfd, signal.SIGSTOP)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(forking.launch, jail_spec(python))
            await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
        signal.pidfd_send_signal(made.pidfd, signal.SIGCONT)
        with pytest.raises(StartFailedError, match=NO_ROOM):
            await forking.launch(jail_spec(python))
        assert forking.templates == [made]


async def test_a_fork_that_is_killed_is_replaced(
    python: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced = template.Template._announced  # pyright: ignore[reportPrivateUsage]
    killed: list[Jail] = []

    def kill(self: template.Template, jail: Jail) -> None:
        announced(self, jail)
        if not killed:
            killed.append(jail)
            jail.kill()
            select.select([jail.pidfd], [], [])
            # What it may have said already is not to be heard.
            with suppress(BlockingIOError, ConnectionError):
                while jail.socket.recv(4096):
                    pass

    async with open_launcher() as forking:
        with monkeypatch.context() as patched:
            patched.setattr(template.Template, "_announced", kill)
            async with open_session(python, launcher=forking) as session:
                assert is_fork(session.jail)
                assert (await session.run("print(1)")).stdout == "1\n"
        assert forking.reasons == {}
        assert killed


@pytest.mark.alone  # the kernel counts descriptors on their way for the whole user
@pytest.mark.usefixtures("many_descriptors")
async def test_a_template_that_hangs_and_has_been_asked_by_many_who_left(
    python: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The socket is full: the next ones cannot even ask. They start in another way."""
    printed: list[str] = []
    async with open_launcher() as forking, open_session(python, launcher=forking):
        [stopped] = forking.templates
        signal.pidfd_send_signal(stopped.pidfd, signal.SIGSTOP)
        spec, limits = jail_spec(python), SessionLimits()
        request = request_for(spec, limits, policy_of(spec, limits, "forked"))
        with monkeypatch.context() as patched:
            # One that cannot send waits for that, and with it in its way the others.
            async with trio.open_nursery() as nursery:
                for _ in range(600):
                    nursery.start_soon(stopped.fork, request)
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()
            assert stopped.is_open
            patched.setattr(template, "FORK_TIMEOUT_S", 0.2)

            async def start() -> None:
                async with open_session(python, launcher=forking) as session:
                    printed.append((await session.run("print(1)")).stdout)

            with trio.fail_after(120):
                async with trio.open_nursery() as nursery:
                    for _ in range(2):
                        nursery.start_soon(start)
        assert not stopped.is_open
    assert printed == ["1\n", "1\n"]
