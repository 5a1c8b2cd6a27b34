"""Sessions as forks of real templates: what they are, and what happens when something dies."""

from __future__ import annotations

import json
import os
import select
import signal
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from fake_fdstore import Held
from many_forkers import eager_template
from nsm.jail.proxyvariables import WITHOUT_NETWORK
from nsm.wire.errors import BadProjectError, StartFailedError
from nsmd.fdstore import records
from nsmd.fdstore.records import KeptEntries
from nsmd.host.processes import children_of, pid_of
from nsmd.host.source_watcher import open_source_watcher
from nsmd.jail import BwrapLauncher, Jail, starting
from nsmd.jail.arguments import TEMPLATE_PATH, JailContent, TemplateSpec
from nsmd.jail.launcher import JailPlan
from nsmd.jail.process import discard
from nsmd.jail.program_code import ProgramCode
from nsmd.jail.templates import TemplateLauncher, launcher, open_templates, template
from nsmd.jail.templates.spec import request_for, template_of, why_unforkable
from nsmd.jail.templates.template import PREFIX, TemplateError, kept_template
from nsmd.model.policy import limit_variables, policy_of
from nsmd.model.values import (
    Environment,
    JailSizes,
    JailSpec,
    ProjectMount,
    ReadOnlyBind,
    SessionLimits,
)
from processes import Watched, tree
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


@asynccontextmanager
async def open_launcher(cold: BwrapLauncher | None = None) -> AsyncGenerator[TemplateLauncher]:
    async with open_templates(cold or new_launcher()) as made:
        assert isinstance(made, TemplateLauncher)
        yield made


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


async def test_sessions_start_cold_without_nested_namespaces(
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
        stats: list[str] = []
        for pid in tree(made.pid):
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
        return eager_template()


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
            children = sorted(children_of(first))
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
        with Watched(forkers[1:]) as watched:
            made.close()
            await watched.all_ended()
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
            watched = Watched([made.pid])
            with trio.fail_after(ENDING_S):
                while made.is_open:
                    await trio.testing.wait_all_tasks_blocked(0.01)
            assert (await session.run("print(1)")).stdout == "1\n"
        with watched:
            await watched.all_ended()


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


async def test_pauses_have_an_end(python: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long an environment has been broken, its sessions start."""
    monkeypatch.setattr(launcher, "LONGEST_PAUSE_S", 0.0)
    broken = replace(python, name="broken", preload=("nonesuch_module",))

    async def fail(*_: object) -> object:
        raise TemplateError("still broken")

    monkeypatch.setattr(launcher, "start_template", fail)

    class NoLauncher(BwrapLauncher):
        async def launch(self, spec: JailSpec, group: int | None = None) -> Jail:
            raise BadProjectError("started cold")

    async with open_launcher(NoLauncher(None, new_launcher().user.uid)) as forking:
        for _ in range(1100):
            with pytest.raises(BadProjectError, match="started cold"):
                await forking.launch(jail_spec(broken))


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


async def test_a_module_that_hangs_while_it_is_preloaded_is_named(
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


@asynccontextmanager
async def launching(store: Held, made: str = "these") -> AsyncGenerator[TemplateLauncher]:
    """A supervisor's launcher, which goes on with what is kept, and ends what it has."""
    cold = new_launcher()
    assert cold.system_calls is not None
    async with open_source_watcher() as watcher, trio.open_nursery() as nursery:
        launcher = TemplateLauncher(cold, cold.system_calls, nursery, watcher, store, lambda: made)
        launcher.take_up(KeptEntries(store, store.duplicates()))
        yield launcher
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def left_behind(python: Environment, store: Held) -> AsyncGenerator[int]:
    """A template that is kept, and whose supervisor does not look after it any more; its pid."""
    async with launching(Held()) as first:
        await first.prepare(jail_spec(python))
        (template,) = first.templates
        records.keep(store, kept_template(template, "these"))
        yield template.pid


async def forked(launcher: TemplateLauncher, python: Environment) -> None:
    """A session is a fork."""
    with trio.fail_after(ANSWER_TIMEOUT_S):
        jail = await launcher.launch(jail_spec(python))
    jail.kill()
    await jail.wait()
    jail.release()
    assert not launcher.reasons


async def test_the_next_supervisor_forks_from_a_kept_template(python: Environment) -> None:
    store = Held()
    async with left_behind(python, store) as pid:
        assert list(store.held) == [f"{PREFIX}{pid}"]
        async with launching(store) as again:
            (template,) = again.templates
            assert template.pid == pid
            await forked(again, python)
            assert [name for name, _ in again.everything_kept()] == [f"{PREFIX}{pid}"]
        assert store.held == {}  # an ordered end ends it


async def test_a_kept_template_of_other_programs_is_closed(python: Environment) -> None:
    store = Held()
    async with left_behind(python, store) as pid, launching(store, made="others") as again:
        assert again.templates == []
        await forked(again, python)
        (template,) = again.templates
        assert template.pid != pid
        assert f"{PREFIX}{pid}" not in store.held
        assert f"{PREFIX}{template.pid}" in store.held


PYTHON = Environment(
    name="python", interpreter="python", agent_python="/usr/bin/python3", program="/usr/bin/python3"
)


def project(mount_point: str = "/project", inode: int = 1) -> ProjectMount:
    return ProjectMount(path="/home/u/p", mount_point=mount_point, device=1, inode=inode)


def spec(environment: Environment = PYTHON, mount: ProjectMount | None = None) -> JailSpec:
    return JailSpec(environment=environment, project=mount, sizes=JailSizes())


def asked(wanted: JailSpec, limits: SessionLimits) -> bytes:
    return request_for(wanted, limits, policy_of(wanted, limits, "forked"))


def test_variables_are_a_session_s_own() -> None:
    secret = replace(PYTHON, variables=(("KEY", "k3y"),))
    assert template_of(spec(secret)) == template_of(spec())
    assert "k3y" not in repr(spec(secret))
    common, policy, *variables = asked(spec(secret), SessionLimits()).decode().split("\0")
    network = [f"{name}={value}" for name, value in WITHOUT_NETWORK]
    limits = [f"{name}={value}" for name, value in limit_variables(PYTHON.memory_mb).items()]
    assert sorted(variables) == sorted(["KEY=k3y", *network, *limits])
    assert "k3y" not in common
    assert "k3y" not in policy
    assert json.loads(common)["prestart"] == "python"
    assert spec(secret) != spec(replace(secret, variables=(("KEY", "other"),)))
    large = replace(PYTHON, variables=(("KEY", "x" * 40_000),))
    assert "variables" in str(why_unforkable(spec(large)))


def test_no_template_runs_an_interpreter_of_the_project() -> None:
    bind = ReadOnlyBind(source="/home/u/p/.venv", target="/home/u/p/.venv")
    shown = replace(PYTHON, binds=(bind,))
    assert "part of the project" in str(why_unforkable(spec(shown, project("/home/u/p"))))
    program = "/project/.venv/bin/python"
    own = replace(PYTHON, program=program, links=(("/home/u/p", "/project"),))
    assert why_unforkable(spec(own, project())) is None
    assert program not in repr(template_of(spec(own, project())))


def test_a_template_has_no_directory_that_each_session_has_for_itself() -> None:
    for path in ("/tmp/py", "/workspace/py", "/dev/shm/py"):
        shown = replace(PYTHON, binds=(ReadOnlyBind(source="/usr", target=path),))
        assert f"{path} is shown below" in str(why_unforkable(spec(shown)))
    assert "/workspace" in str(why_unforkable(spec(mount=project("/workspace/p"))))


def test_a_replaced_project_has_another_template() -> None:
    first, second = (template_of(spec(mount=project(inode=inode))) for inode in (1, 2))
    assert first != second
