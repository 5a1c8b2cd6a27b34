"""Jails that artifacts make, with those of `artifact_files` really started."""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from artifact_files import (
    OlderWrapper,
    environment_of,
    write_artifact,
    write_older,
    write_program,
    write_run_only,
)
from nsm.wire.errors import BadProjectError, StartFailedError
from nsmd.agent_link.frames import AgentFrame, ErrorFrame, OtherFrame, ResultFrame
from nsmd.agent_link.link import AgentLink
from nsmd.jail import BwrapLauncher, Jail, process, run_only, starting
from nsmd.jail import artifact as artifact_module
from nsmd.jail.artifact import ArtifactLauncher
from nsmd.model.values import Environment, JailSpec, Outcome, ProjectMount
from processes import Watched, child_pids, descriptors, parent_of, tree
from realjail import (
    ANSWER_TIMEOUT_S,
    jail_spec,
    launched,
    mount_of,
    needs_bwrap,
    open_cold,
    open_session,
    talking_to,
)
from selection import one_in

pytestmark = [pytest.mark.jail, needs_bwrap]

OLDER_WRAPPERS: tuple[OlderWrapper, ...] = ("exec", "trap", "child", "lasting")


@asynccontextmanager
async def open_bench(folder: Path) -> AsyncGenerator[BwrapLauncher]:
    """Nothing of what was started in it is left after the block."""
    before, children = descriptors(), child_pids()
    async with open_cold(str(folder / "home")) as launcher:
        yield launcher
    assert child_pids() == children
    assert descriptors() == before


async def refused(folder: Path, spec: JailSpec, match: str | None = None) -> StartFailedError:
    """The reason why a jail does not start, after which nothing of it is left."""
    async with open_bench(folder) as launcher:
        with pytest.raises(StartFailedError, match=match) as caught:
            await launcher.launch(spec)
        await none_left_of(folder)
    return caught.value


def with_program(folder: Path, text: str, *, schema: int = 1, mode: int = 0o755) -> Environment:
    """An artifact whose `session-run` is that script."""
    artifact = write_artifact(folder, "odd", metadata={"schema": schema})
    write_program(artifact / "bin" / "session-run", f"#!/bin/bash\n{text}\n", mode)
    return environment_of(artifact)


def without_sessions(environment: Environment) -> Environment:
    """The environment of an artifact that can only run one piece of code."""
    assert environment.artifact is not None
    return replace(environment, artifact=replace(environment.artifact, session_run=None))


# ------------------------------------------------------------------------------------- schema 1


async def test_the_project_is_shown_by_descriptor_and_read_only(folder: Path) -> None:
    environment = environment_of(write_artifact(folder))
    project = folder / "project"
    project.mkdir()
    (project / "data.txt").write_text("hello")
    async with open_bench(folder) as launcher:
        async with open_session(
            environment, mount_of(project, "/srv/work"), launcher=launcher
        ) as session:
            outcome = await session.run(
                "print(open('/srv/work/data.txt').read())\nopen('/srv/work/new', 'w')"
            )
        assert outcome.stdout == "hello\n"
        assert "Read-only file system" in outcome.stderr
        mount = mount_of(project)
        project.rename(folder / "old")
        project.mkdir()
        with pytest.raises(BadProjectError, match="was replaced"):
            await launcher.launch(jail_spec(environment, mount))


@pytest.mark.parametrize("mount_point", ["/nix", "/nix/store/x"])
async def test_a_project_does_not_cover_the_store(mount_point: str, folder: Path) -> None:
    environment = environment_of(write_artifact(folder))
    async with open_bench(folder) as launcher:
        with pytest.raises(BadProjectError, match="cover /nix"):
            await launcher.launch(jail_spec(environment, mount_of(folder, mount_point)))


async def test_a_program_gets_what_is_agreed_on_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "s3cr3t")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/tmp")
    # In one line: the first ones are all that is kept.
    script = 'printf "%s\\n" "$@" >&2\nall=$(export -p)\necho "${all//$\'\\n\'/ }" >&2'
    environment = with_program(folder, script)
    error = await refused(folder, jail_spec(environment, mount_of(folder)))
    words = str(error.data["stderr"])
    assert words.splitlines()[:5] == [
        *("--prestart", "python"),
        *("--workspace", "/workspace"),
        "--limits",
    ]
    names = set(re.findall(r"declare -x (\w+)", words))
    ours = {"HOME", "LANG", "TERM", "PROJECT_DIR", "PROJECT_MOUNT", "PROJECT_MODE"}
    ours |= {"NSM_PROJECT_FD", "NSM_INFO_FD", "NSM_POLICY_FD", "NSM_VARIABLES_FD"}
    ours |= {"NSM_WORKSPACE_MB", "NSM_TMP_MB", "NSM_SHM_MB"}
    assert ours <= names
    assert names <= ours | {"OLDPWD", "PWD", "SHLVL"}
    assert "s3cr3t" not in words


# ---------------------------------------------------------------------------------------- older


@pytest.mark.parametrize("wrapper", OLDER_WRAPPERS)
async def test_an_older_session_keeps_its_state(wrapper: OlderWrapper, folder: Path) -> None:
    environment = environment_of(write_older(folder, wrapper=wrapper))
    async with (
        open_bench(folder) as launcher,
        open_session(environment, launcher=launcher) as session,
    ):
        await session.run("import os; x = os.getcwd()")
        assert (await session.run("print(x)")).stdout == "/workspace\n"


# ------------------------------------------------------------------------------------- its ends


BUSY = """
import subprocess, sys
program = "import os, signal\\nos.setsid()\\nos.write(1, b'.')\\nsignal.pause()"
child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
child.stdout.read(1)
"""
"""Leaves a process behind in a session of its own."""


def everything_of(jail: Jail) -> Watched:
    """All processes from the wrapper downwards."""
    top = jail.pid
    while parent_of(top) != os.getpid():
        top = parent_of(top)
    return Watched(tree(top))


@pytest.mark.parametrize("wrapper", one_in(2, [None, "exec", "trap", "lasting"]))
@pytest.mark.parametrize("victim", ["wrapper", "bwrap", "agent"])
async def test_whichever_is_killed_nothing_is_left(
    victim: str, wrapper: OlderWrapper | None, folder: Path
) -> None:
    """Some live on without their starter, and can still be ended."""
    write = write_older(folder, wrapper=wrapper) if wrapper else write_artifact(folder)
    async with (
        open_bench(folder) as launcher,
        launched(launcher, jail_spec(environment_of(write))) as jail,
        talking_to(jail, "python") as session,
    ):
        await session.run(BUSY)
        with everything_of(jail) as watched:
            line = [jail.pid]
            while parent_of(line[0]) != os.getpid():
                line.insert(0, parent_of(line[0]))
            # The agent is PID 1, or its first child.
            agent = (
                line[-1] if wrapper is None else next(p for p in tree(jail.pid) if p != jail.pid)
            )
            pid = {"wrapper": line[0], "bwrap": line[-2], "agent": agent}[victim]
            with Watched([pid]) as one:
                os.kill(pid, signal.SIGKILL)
                await one.all_ended()
            jail.kill()
            with trio.fail_after(120):
                await jail.wait()
            await watched.all_ended()


HANGS = [
    "{}",
    "setsid {} & wait",
    "(trap '' TERM HUP; exec {}) & wait",
    "(setsid {} & setsid {} & wait) & wait",
]


def hanging(folder: Path, hang: str, schema: int) -> Environment:
    """An artifact whose program never comes to an end; its processes name that folder."""
    environment = with_program(folder, "", schema=schema)
    assert environment.artifact is not None
    assert environment.artifact.session_run is not None
    wait = f"tail -n 0 -f {environment.source}/metadata.json"
    script = f"#!/bin/bash\necho not so fast >&2\n{hang.format(wait, wait)}\n"
    write_program(Path(environment.artifact.session_run), script)
    return environment


async def none_left_of(folder: Path) -> None:
    """All processes that name something in a folder end; those that were killed may still be
    about to."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ProcessLookupError), Watched([int(path.name)]) as one:
            if str(folder).encode() in (path / "cmdline").read_bytes():
                await one.all_ended()


@pytest.mark.parametrize("hang", HANGS)
@pytest.mark.parametrize("schema", [pytest.param(0, marks=pytest.mark.slow), 1])
async def test_a_start_that_hangs_is_ended_with_all_its_processes(
    schema: int, hang: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = hanging(folder, hang, schema)
    for name in ("INFO_TIMEOUT_S", "SPEAK_TIMEOUT_S"):
        monkeypatch.setattr(starting, name, 0.1)
    monkeypatch.setattr(process, "STARTER_GRACE_S", 0.1)
    await refused(folder, jail_spec(environment), "not so fast")


@pytest.mark.parametrize("hang", HANGS)
@pytest.mark.parametrize("schema", [pytest.param(0, marks=pytest.mark.slow), 1])
async def test_a_launch_that_is_cancelled_leaves_nothing(
    schema: int, hang: str, folder: Path
) -> None:
    environment, known = hanging(folder, hang, schema), child_pids()
    async with open_bench(folder) as launcher:
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(launcher.launch, jail_spec(environment))
                with trio.fail_after(ANSWER_TIMEOUT_S):
                    while not child_pids(known):  # the program is looked at in a thread before
                        await trio.testing.wait_all_tasks_blocked()
                await trio.testing.wait_all_tasks_blocked()
                assert len(child_pids(known)) == 1
                nursery.cancel_scope.cancel()
            assert child_pids(known) == []
            await none_left_of(folder)


# ------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("schema", [pytest.param(0, marks=pytest.mark.slow), 1])
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo no such luck >&2; exit 3", "no such luck"),
        ("exit 0", "nothing about why"),
        ("for i in {1..1000}; do echo line $i >&2; done; exit 1", r"line 20\b(?!\nline 21)"),
        ("kill -9 $$", "nothing about why"),
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "namespace"),
        ("exec /opt/gone/bin/bwrap", "/opt/gone/bin/bwrap"),
    ],
)
async def test_a_program_that_ends_before_its_agent_speaks(
    script: str, said: str, schema: int, folder: Path
) -> None:
    environment = with_program(folder, script, schema=schema)
    error = await refused(folder, jail_spec(environment), said)
    assert error.hint


async def test_a_file_system_that_hangs_holds_up_nobody_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(artifact_module, "LOOK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(artifact_module, "MAX_LOOKS", 1)

    def hang(_launcher: ArtifactLauncher, program: str) -> str:
        answers.wait()
        return program

    monkeypatch.setattr(ArtifactLauncher, "_check_program", hang)
    environment = with_program(folder, "exit 0")
    try:
        async with open_bench(folder) as launcher:
            for _ in range(2):  # the thread that looks is taken by then
                with pytest.raises(StartFailedError, match="has not answered"):
                    await launcher.launch(jail_spec(environment))
    finally:
        answers.set()


async def test_a_program_that_makes_no_jail_is_refused(folder: Path) -> None:
    """Processes outside a PID namespace could outlive their session."""
    script = "echo >&0 hello; setsid tail -n 0 -f $0 & wait"
    environment = with_program(folder, script, schema=0)
    await refused(folder, jail_spec(environment), "not in a PID namespace")


def remove(program: Path) -> None:
    program.unlink()


def remove_its_interpreter(program: Path) -> None:
    write_program(program, "#!/opt/gone/bin/bash\n")


def forbid(program: Path) -> None:
    program.chmod(0o644)


def empty(program: Path) -> None:
    write_program(program, "")


def make_circular(program: Path) -> None:
    program.unlink()
    program.symlink_to(program.name)


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("session-run", remove, "is not there any more"),
        ("session-run", remove_its_interpreter, "needs a program that is not there"),
        ("session-run", forbid, "cannot be run: Permission denied"),
        ("session-run", empty, "cannot be run: Exec format error"),
        ("session-run", make_circular, "Too many levels of symbolic links"),
        ("run", remove, "is not there any more"),
        ("run", forbid, "cannot be run: Permission denied"),
        ("run", make_circular, "Too many levels of symbolic links"),
    ],
)
async def test_a_program_that_cannot_be_executed(
    name: str, spoil: Callable[[Path], None], said: str, folder: Path
) -> None:
    artifact = write_artifact(folder)
    environment = environment_of(artifact)
    if name == "run":
        environment = without_sessions(environment)
    spoil(artifact / "bin" / name)
    error = await refused(folder, jail_spec(environment), said)
    assert str(artifact / "bin" / name) in error.message
    assert "Build the environment again" in error.hint


async def test_no_room_for_a_process_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    environment = environment_of(write_artifact(folder))
    monkeypatch.setattr("nsmd.jail.artifact.spawn", no_process)
    await refused(folder, jail_spec(environment), "no room for another session")


@pytest.mark.root
@pytest.mark.parametrize("session", [True, False])
async def test_links_may_lie_where_the_jails_user_cannot_go(session: bool, folder: Path) -> None:
    """Root's own sandbox directory leads to a store that everyone may read."""
    closed = folder / "closed"
    closed.mkdir(mode=0o700)
    for name in ("science", "once"):
        (closed / name).symlink_to(folder / "store" / name)
    write_artifact(folder / "store", "science")
    write_run_only(folder / "store", "once")
    (folder / "store").chmod(0o755)
    environment = environment_of(closed / ("science" if session else "once"))
    async with (
        open_bench(folder) as launcher,
        open_session(environment, launcher=launcher) as session_,
    ):
        assert (await session_.run("print(42)")).stdout == "42\n"


class Talk:
    """Frames to and from what stands in for an agent."""

    def __init__(self, link: AgentLink) -> None:
        self.link = link
        self._count = 0

    def execute(self, code: str, **fields: Any) -> str:
        self._count += 1
        id_ = str(self._count)
        self.link.post({"type": "execute", "id": id_, "code": code, **fields})
        return id_

    async def receive(self) -> AgentFrame:
        with trio.fail_after(ANSWER_TIMEOUT_S):
            return await self.link.receive()

    async def run(self, code: str, **fields: Any) -> Outcome:
        id_ = self.execute(code, **fields)
        frame = await self.receive()
        assert isinstance(frame, ResultFrame), frame
        assert frame.id == id_
        return frame.outcome


@asynccontextmanager
async def talking(
    environment: Environment, folder: Path, project: ProjectMount | None = None
) -> AsyncGenerator[Talk]:
    """Nothing of what was started in it is left after the block."""
    async with open_bench(folder) as launcher, trio.open_nursery() as nursery:
        async with launched(launcher, jail_spec(environment, project)) as jail:
            link = AgentLink(jail.socket, nursery)
            ready = await link.handshake({})
            assert ready.capabilities == {"execute.timeout", "execute.result", "interrupt"}
            yield Talk(link)
            link.close()
        nursery.cancel_scope.cancel()


async def test_each_execution_has_a_jail_of_its_own(folder: Path) -> None:
    async with talking(environment_of(write_run_only(folder)), folder) as talk:
        first = await talk.run("x = 1; open('/workspace/file', 'w'); print('first')")
        assert (first.stdout, first.stderr, first.exit_code) == ("first\n", "", 0)
        assert first.duration_s > 0
        second = await talk.run("import os, sys; print(os.listdir('/workspace')); print(x)")
        assert second.stdout == "[]\n"
        assert "NameError" in second.stderr
        assert second.exit_code == 1


async def test_the_project_is_shown(folder: Path) -> None:
    environment = environment_of(write_run_only(folder, interpreter="bash"))
    project = folder / "project"
    project.mkdir()
    (project / "here").touch()
    mount = mount_of(project, "/srv/it")
    async with talking(environment, folder, mount) as talk:
        assert (await talk.run("ls /srv/it")).stdout == "here\n"
        project.rename(folder / "elsewhere")
        project.mkdir()
        talk.execute("ls /srv/it")
        answer = await talk.receive()
        assert isinstance(answer, ErrorFrame)
        assert "was replaced" in answer.message
    async with open_cold(str(folder / "home")) as launcher:
        with pytest.raises(BadProjectError, match="was replaced"):
            await launcher.launch(jail_spec(environment, mount))


ENDLESS = "import os\nprint('begun', flush=True)\nos.fork(); os.fork()\nwhile True: pass"


@pytest.mark.parametrize("wrapper", ["trap", "lasting"])
async def test_the_time_limit_ends_everything(wrapper: Any, folder: Path) -> None:
    environment = environment_of(write_run_only(folder, wrapper=wrapper))
    async with talking(environment, folder) as talk:
        outcome = await talk.run(ENDLESS, timeout_s=0.5, grace_s=2.0)
        assert outcome.timed_out
        assert outcome.exit_code == 124
        assert outcome.stdout == "begun\n"
        assert (await talk.run("print(1)")).stdout == "1\n"


async def test_an_interrupt_ends_what_runs(folder: Path) -> None:
    async with talking(environment_of(write_run_only(folder)), folder) as talk:
        id_ = talk.execute(ENDLESS, timeout_s=30)
        talk.link.post({"type": "interrupt", "id": "other"})
        assert await talk.receive() == OtherFrame(type="idle")
        talk.execute("print(2)")
        busy = await talk.receive()
        assert isinstance(busy, ErrorFrame)
        assert busy.id == "2"
        talk.link.post({"type": "interrupt", "id": id_})
        frame = await talk.receive()
        assert isinstance(frame, ResultFrame)
        assert frame.outcome.interrupted
        assert frame.outcome.exit_code == 130
        assert not frame.outcome.timed_out


async def test_processes_that_code_leaves_behind_are_ended(folder: Path) -> None:
    """A jail of schema 1 has no parent-death signal: it is ended by what bwrap tells of it."""
    alone = without_sessions(environment_of(write_artifact(folder, interpreter="bash")))
    marker = folder / "marker"
    marker.mkdir()
    async with talking(alone, folder, mount_of(marker)) as talk:
        outcome = await talk.run("setsid tail -f /dev/null >/dev/null 2>&1 & echo $!")
        assert outcome.exit_code == 0, outcome
        for child in list(tree(os.getpid()))[1:]:
            with Watched([child]) as one:
                await one.all_ended()

    # `talking` looks for what is left


async def test_without_descriptors_the_call_fails_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(pid: int, root: int) -> int | None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    environment = without_sessions(environment_of(write_artifact(folder)))
    async with talking(environment, folder) as talk:
        with monkeypatch.context() as patch:
            patch.setattr(run_only, "open_descendant", none_left)
            id_ = talk.execute("print(1)")
            answer = await talk.receive()
            assert isinstance(answer, ErrorFrame)
            assert (answer.id, "Too many open files" in answer.message) == (id_, True)
        assert (await talk.run("print(1)")).stdout == "1\n"
