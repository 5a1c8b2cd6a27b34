"""Sessions as forks of real templates: what they are, and what happens when something dies."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from nsm.wire.errors import BadProjectError
from nsmd.host.processes import pid_of
from nsmd.jail import BwrapLauncher, Jail
from nsmd.jail.arguments import TEMPLATE_PATH, JailContent, TemplateSpec
from nsmd.jail.launcher import JailPlan
from nsmd.jail.process import discard
from nsmd.jail.program_code import ProgramCode, source_of
from nsmd.jail.templates import TemplateLauncher, launcher, open_templates, template
from nsmd.model.values import Environment, ReadOnlyBind
from realjail import (
    ANSWER_TIMEOUT_S,
    environments,
    is_fork,
    jail_spec,
    launched,
    mount_of,
    needs_bwrap,
    new_launcher,
    open_directory,
    open_session,
    talking_to,
)

pytestmark = [pytest.mark.jail, needs_bwrap]

ENDING_S = 120.0
"""Far above the milliseconds that an end takes."""


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


async def wait_dead(pid: int) -> None:
    """Wait until a process of the host is gone."""
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            with trio.fail_after(ENDING_S):
                await trio.lowlevel.wait_readable(pidfd)
        finally:
            os.close(pidfd)


def children_of(pid: int) -> list[int]:
    """Process ids of a process's children."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_all_interpreters_are_forks_of_as_few_templates_as_can_be(
    found: dict[str, Environment],
) -> None:
    code = {"python": "print(6 * 7)", "bash": "echo 42", "node": "console.log(42)"}
    usable = {name: e for name, e in found.items() if e.problem is None}
    async with open_launcher() as forking:
        for name, environment in usable.items():
            async with open_session(environment, launcher=forking) as session:
                assert is_fork(session.jail)
                assert (await session.run(code[name])).stdout == "42\n"
        assert forking.reasons == {}
        kinds = {(e.agent_python, e.binds, e.path) for e in usable.values()}
        assert len(forking.templates) == len(kinds)


async def test_variables_are_one_session_s_and_leave_nothing_in_the_template(
    found: dict[str, Environment],
) -> None:
    """They may be secrets of the client whose session it is, and others fork from the same."""
    python = replace(found["python"], variables=(("TOKEN", "secret-of-one-client " * 20),))
    bash = replace(found["bash"], variables=(("TOKEN", "two words"), ("ODD", "\udcff")))
    look = """
import os, re
wanted = re.compile(b"secret[-]of[-]one[-]client secret[-]of")  # which is no match itself
ranges = [line.split() for line in open("/proc/self/maps")]
seen = 0
with open("/proc/self/mem", "rb", 0) as memory:
    for place, mode, *_ in ranges:
        begin, end = (int(part, 16) for part in place.split("-"))
        if mode.startswith("rw"):
            memory.seek(begin)
            seen += len(wanted.findall(memory.read(end - begin)))
print(os.environ.get("TOKEN", "none")[:20], seen > 0)
"""
    async with open_launcher() as forking:
        for launching in (forking, new_launcher()):
            async with open_session(bash, launcher=launching) as session:
                code = 'printf "%s|%q" "$TOKEN" "$ODD"'
                assert (await session.run(code)).stdout == "two words|$'\\377'"
        for _ in range(3):
            async with open_session(python, launcher=forking) as session:
                assert (await session.run(look)).stdout == "secret-of-one-client True\n"
            async with open_session(found["python"], launcher=forking) as session:
                assert (await session.run(look)).stdout == "none False\n"


class UnnestableLauncher(BwrapLauncher):
    """Launcher as on a host that does not let namespaces be nested."""

    nestable = False

    def _arguments(self, plan: JailPlan, content: JailContent) -> list[str]:
        words = super()._arguments(plan, content)
        return (
            words if "--disable-userns" in words or self.nestable else ["--disable-userns", *words]
        )


async def test_where_namespaces_cannot_be_nested_sessions_start_cold(
    python: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = UnnestableLauncher(new_launcher().bwrap_path, new_launcher().user.uid)
    async with open_launcher(cold) as forking:
        async with open_session(python, launcher=forking) as session:
            assert (await session.run("print(1)")).stdout == "1\n"
        assert "clone" in forking.reasons["python"]
        # It is not tried again for each session ...
        started = 0

        async def count(*_: object) -> None:
            nonlocal started
            started += 1

        with monkeypatch.context() as patched:
            patched.setattr(launcher, "start_template", count)
            async with open_session(python, launcher=forking):
                assert started == 0
    # ... but where it works, it is.


async def test_after_a_pause_a_template_is_tried_again(
    python: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "FIRST_PAUSE_S", 0.0)
    cold = UnnestableLauncher(new_launcher().bwrap_path, new_launcher().user.uid)
    async with open_launcher(cold) as forking:
        async with open_session(python, launcher=forking) as session:
            assert not is_fork(session.jail)
        cold.nestable = True
        for made in forking.templates:
            made.close()
        async with open_session(python, launcher=forking) as session:
            assert is_fork(session.jail)
        assert forking.reasons == {}


async def test_sessions_outlive_their_template(python: Environment) -> None:
    async with open_launcher() as forking, open_session(python, launcher=forking) as session:
        await session.run("kept = 1")
        [first] = forking.templates
        signal.pidfd_send_signal(first.pidfd, signal.SIGKILL)
        assert (await session.run("print(kept)")).stdout == "1\n"
        # The next session comes from a new one.
        async with open_session(python, launcher=forking) as other:
            assert is_fork(other.jail)
            assert (await other.run("print(2)")).stdout == "2\n"
            [second] = forking.templates
            assert second is not first
        assert (await session.run("print(kept)")).stdout == "1\n"


async def test_killing_a_jail_s_first_process_ends_all_in_it(python: Environment) -> None:
    async with open_launcher() as forking:
        async with open_session(python, launcher=forking) as session:
            [made] = forking.templates
            os.kill(made.pid, signal.SIGKILL)
            with trio.fail_after(ENDING_S):
                await session.jail.wait()
        async with open_session(python, launcher=forking) as other:
            assert (await other.run("print(2)")).stdout == "2\n"


async def test_a_session_s_end_takes_all_that_it_started(python: Environment) -> None:
    daemon = (
        "import os, signal\n"
        "for _ in range(5):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork(): os._exit(0)\n"
        "        signal.pause()\n"
    )
    async with open_launcher() as forking, open_session(python, launcher=forking) as bystander:
        async with open_session(python, launcher=forking) as session:
            await session.run(daemon)
        [made] = forking.templates
        assert made.is_open
        assert (await bystander.run("print(1)")).stdout == "1\n"
        # All of the jail's processes: bwrap's, the template, and the bystander's two. The ended
        # session's PID 1 may still be there for the template to reap.
        below = [made.pid]
        for pid in below:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                below += [int(child) for child in children.read_text().split()]
        stats: list[str] = []
        for pid in below:
            with suppress(OSError):
                stats.append(Path(f"/proc/{pid}/stat").read_text())
        assert sum(stat.rpartition(")")[2].split()[0] != "Z" for stat in stats) == 4


async def test_a_template_that_hangs_is_given_up(
    python: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_launcher() as forking, open_session(python, launcher=forking) as session:
        [stopped] = forking.templates
        signal.pidfd_send_signal(stopped.pidfd, signal.SIGSTOP)
        monkeypatch.setattr(template, "FORK_TIMEOUT_S", 0.2)
        monkeypatch.setattr(launcher, "FIRST_PAUSE_S", 0.0)
        async with open_session(python, launcher=forking) as other:
            assert not is_fork(other.jail)
            assert "did not fork" in forking.reasons["python"]
        assert not stopped.is_open
        assert (await session.run("print(1)")).stdout == "1\n"
        monkeypatch.setattr(template, "FORK_TIMEOUT_S", ANSWER_TIMEOUT_S)
        async with open_session(python, launcher=forking) as other:
            assert is_fork(other.jail)


async def test_templates_killed_while_they_fork(
    python: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every session starts in one way or another, and nothing is left of those that did not."""
    monkeypatch.setattr(launcher, "FIRST_PAUSE_S", 0.0)
    async with open_launcher() as forking:
        for round_number in (0, 2, 5):
            jails: list[Jail] = []

            async def start(into: list[Jail] = jails) -> None:
                jail = await forking.launch(jail_spec(python))
                into.append(jail)

            with trio.fail_after(ANSWER_TIMEOUT_S):
                async with trio.open_nursery() as nursery:
                    for _ in range(4):
                        nursery.start_soon(start)
                    for _ in range(3 * round_number):
                        await trio.lowlevel.checkpoint()
                    for made in forking.templates:
                        signal.pidfd_send_signal(made.pidfd, signal.SIGKILL)
            assert len(jails) == 4
            for jail in jails:
                async with talking_to(jail, "python") as session:
                    assert (await session.run("print(1)")).stdout == "1\n"
                jail.kill()
                await jail.wait()
                jail.release()


class ManyForkers(ProgramCode):
    """Program whose template starts as many forkers as on a big machine, and at once."""

    async def for_python(self, path: str, binds: Sequence[ReadOnlyBind] = ()) -> bytes:
        del path, binds
        text = source_of("sandbox_template")
        for old, new in (
            (b"CORES_PER_FORKER = 4", b"CORES_PER_FORKER = .25"),
            (b"BEHIND = 8", b"BEHIND = 1"),
        ):
            assert text.count(old) == 1
            text = text.replace(old, new)
        return text


class BigMachineLauncher(BwrapLauncher):
    """Launcher of templates with many forkers."""

    def __init__(self) -> None:
        super().__init__(new_launcher().bwrap_path, new_launcher().user.uid)
        self._template_code = ManyForkers("sandbox_template", TEMPLATE_PATH)


async def test_forkers_share_the_work_and_end_with_the_first(python: Environment) -> None:
    jails: list[Jail] = []

    async def start() -> None:
        jails.append(await forking.launch(jail_spec(python)))

    async def start_many() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(start)

    async with open_launcher(BigMachineLauncher()) as forking:
        await start_many()
        assert forking.reasons == {}
        [made] = forking.templates
        first = pid_of(made.pidfd)
        assert first is not None
        shared = os.readlink(f"/proc/{first}/ns/pid")  # sessions have one of their own

        def find_forkers() -> list[int]:
            children = children_of(first)
            return [pid for pid in children if os.readlink(f"/proc/{pid}/ns/pid") == shared]

        # Who gets a processor decides whether requests wait, and who takes them.
        with trio.fail_after(ANSWER_TIMEOUT_S):
            while len(forkers := find_forkers()) < 3 or not any(map(children_of, forkers)):
                await start_many()
        await start_many()
        assert find_forkers() == forkers
        # A dead forker costs nobody a session.
        os.kill(forkers[0], signal.SIGKILL)
        await start_many()
        made.close()
        for pid in forkers:
            await wait_dead(pid)
        for jail in jails:
            async with talking_to(jail, "python") as session:
                assert (await session.run("print(1)")).stdout == "1\n"
            jail.kill()
            await jail.wait()
            jail.release()


async def test_cancelled_starts_leave_nothing(python: Environment) -> None:
    async def start() -> None:
        await discard(await forking.launch(jail_spec(python)))  # a quick one is not cancelled

    async with open_launcher() as forking:
        async with open_session(python, launcher=forking):
            pass
        descriptors = len(os.listdir("/proc/self/fd"))
        [made] = forking.templates
        for turns in range(12):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(start)
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        async with open_session(python, launcher=forking) as session:
            await session.run("pass")
        assert made.is_open
        assert len(os.listdir("/proc/self/fd")) == descriptors


async def test_a_replaced_project_gets_another_template(python: Environment) -> None:
    with open_directory() as directory:
        project = directory / "p"
        project.mkdir(mode=0o755)
        (project / "name").write_text("first")
        before = mount_of(project)
        read = "print(open('/project/name').read())"
        async with open_launcher() as forking:
            async with open_session(python, before, launcher=forking) as session:
                assert (await session.run(read)).stdout == "first\n"
                project.rename(directory / "old")
                project.mkdir(mode=0o755)
                (project / "name").write_text("second")
                async with open_session(python, mount_of(project), launcher=forking) as other:
                    assert (await other.run(read)).stdout == "second\n"
                assert (await session.run(read)).stdout == "first\n"
            for made in forking.templates:
                made.close()
            with pytest.raises(BadProjectError):
                await forking.launch(jail_spec(python, before))


async def test_too_many_templates_make_room(
    python: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "MAX_TEMPLATES", 2)
    async with open_launcher() as forking:
        for module in ("json", "csv", "ast"):
            kind = replace(python, preload=(module,))
            async with launched(forking, jail_spec(kind)) as jail:
                assert is_fork(jail)
            assert len(forking.templates) <= 2
        assert [made.spec.preload for made in forking.templates] == [("csv",), ("ast",)]


async def test_a_template_that_nobody_uses_goes(
    python: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template, "KEEP_S", 0.05)
    started: list[template.Template] = []

    async def note(cold: BwrapLauncher, spec: TemplateSpec, system_calls: bytes) -> object:
        started.append(await template.start_template(cold, spec, system_calls))
        return started[-1]

    monkeypatch.setattr(launcher, "start_template", note)
    async with open_launcher() as forking:
        async with open_session(python, launcher=forking) as session:
            [made] = started
            with trio.fail_after(ENDING_S):
                while made.is_open:
                    await trio.testing.wait_all_tasks_blocked(0.01)
            assert (await session.run("print(1)")).stdout == "1\n"
        await wait_dead(made.pid)


@pytest.mark.parametrize("forked", [True, False], ids=["forked", "cold"])
async def test_a_jail_enters_the_group_that_it_is_given(tmp_path: Path, *, forked: bool) -> None:
    """Before it gets its cgroup namespace: a file stands in for the group's list of processes."""
    entry = os.open(tmp_path / "cgroup.procs", os.O_RDWR | os.O_CREAT)
    try:
        async with open_templates(new_launcher(), enabled=forked) as launcher:
            jail = await launcher.launch(jail_spec(environments()["python"]), entry)
            told = (tmp_path / "cgroup.procs").read_text()
            assert told == ("0" if forked else str(jail.starter_pid))
            jail.kill()
            await jail.wait()
            jail.release()
    finally:
        os.close(entry)
