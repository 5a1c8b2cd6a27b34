"""Launcher of jails by the programs of artifacts, which bring bwrap, agent and interpreter with
them.

`docs/reference/formats.md` says what such a program takes. Programs of schema 1 tell the process
id of the jail as bwrap does, take the project as a descriptor, and have templates. Older ones do
none of this; their jail is found below them once their agent speaks.

The artifact makes its own jail. If the supervisor made it from the artifact's closure, an artifact
would need the supervisor of its time, and the jail would not be what its author declared. So the
agent is as old as its artifact, and the supervisor asks it only for what its `ready` offers; a fix
of the agent reaches an artifact when it is built again. Isolation is written down twice, in Nix and
in Python, and the same probes attack both.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import stat
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

import trio

from nsm.jail.failure import EXHAUSTED, SEE_DOCTOR, exhausted, explain, read_host_facts
from nsm.wire.errors import BadProjectError, StartFailedError
from nsmd.host.paths import is_within
from nsmd.jail.arguments import TemplateSpec
from nsmd.jail.bubblewrap import limit_namespaces
from nsmd.jail.process import Jail
from nsmd.jail.project import NoCopyError
from nsmd.jail.run_only import start_run_only
from nsmd.jail.starting import (
    POLICY,
    JailNotStartedError,
    gate,
    hand_over,
    jail_of,
    open_ends,
    spawn,
    start_error,
    with_limits,
)
from nsmd.jail.user import JailUser
from nsmd.model.policy import POLICY_PATH, WORKSPACE, MountRule, Policy, jail_variables, policy_of
from nsmd.model.values import (
    Artifact,
    Environment,
    JailSizes,
    JailSpec,
    ProjectMount,
    SessionLimits,
)

STORE = "/nix"
"""Directory of everything that artifacts consist of."""

HOMELESS = "/homeless-shelter"
"""HOME of programs that need none, as in Nix builds: it does not exist."""

_NO_PROGRAM = frozenset(
    {errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ELOOP, errno.ENOTDIR, errno.EISDIR}
)
"""Errors of execve(2) that come from the program, and not from us."""

LOOK_TIMEOUT_S = 5.0
"""Time for a look at a program, which takes microseconds."""

MAX_LOOKS = 8
"""Looks at once, in threads that may never return."""

_FIRST_LINES = 20
"""Lines of a program's stderr to show."""

_SCRIPT_BYTES = 1 << 20
_BWRAP = re.compile(rb"(/[\w./+-]+/bin/bwrap)\b")

DATA = (".local", ".local/share", ".local/share/jail.nix")
"""Directory in which jail.nix keeps them."""


class ArtifactLauncher:
    """Launcher of jails from artifacts' programs, for environments that have an artifact. Older
    ones get our directory `home` as HOME, made when needed; the nursery owns the agents of those
    that have none in their jails.
    """

    def __init__(
        self, user: JailUser, home: str, limits: SessionLimits, nursery: trio.Nursery
    ) -> None:
        self._user = user
        self._home = WrapperHome(user, home)
        self._limits = limits
        self._nursery = nursery
        self._looks = trio.CapacityLimiter(MAX_LOOKS)

    def __repr__(self) -> str:
        return f"<ArtifactLauncher as user {self._user.uid}>"

    def policy(self, spec: JailSpec, *, forked: bool) -> Policy:
        takes_it = POLICY in _artifact_of(spec.environment).takes
        # The artifact decides which paths of its store it shows, and what else.
        shown = [MountRule(path="/", kind="binds")]
        shown += [MountRule(path=POLICY_PATH, kind="file")] * takes_it
        return policy_of(
            spec, self._limits, "artifact-forked" if forked else "artifact", shown=shown
        )

    async def launch(self, spec: JailSpec, policy: Policy, group: int | None = None) -> Jail:
        """Start a session's jail, with this policy; as `Launcher.launch`."""
        environment, artifact = spec.environment, _artifact_of(spec.environment)
        _check_mount_point(spec.project)
        if spec.network.mode == "full":
            raise StartFailedError(
                f"Environment '{environment.name}' was built by Nix, and its jails have no network "
                "but their own: they cannot have the host's.",
                hint='Allow it the hosts that it needs: network = ["HOST", ...], or nsm net.',
            )
        if spec.project is not None and spec.project.copied:
            raise NoCopyError(
                spec.project.path,
                f"the programs of environment '{environment.name}' only show it read-only",
            )
        if artifact.session_run is None:
            await self._look_at(artifact.run)
            variables = self._variables(artifact, spec.project, spec.sizes)
            return await start_run_only(
                spec, policy, self._user, variables, self._limits, self._nursery
            )
        older = artifact.schema == 0
        jail = await self._launch(
            artifact,
            [artifact.session_run, *(() if older else self._agent_arguments(environment))],
            socket.SOCK_STREAM,
            self._variables(artifact, spec.project, spec.sizes),
            spec.project,
            "agent",
            limited=environment if older else None,
            policy=policy.as_text().encode(),
            code_variables=jail_variables(environment, spec.network),
            group=group,
        )
        jail.policy = policy
        await limit_namespaces(jail.pid, {})
        return jail

    async def launch_template(self, spec: TemplateSpec) -> Jail:
        """Start a template's jail; `socket` is its control socket."""
        assert spec.artifact is not None
        assert spec.artifact.template_run is not None
        _check_mount_point(spec.project)
        imports = f", which imports {', '.join(spec.preload)}," if spec.preload else ""
        return await self._launch(
            spec.artifact,
            [spec.artifact.template_run, *spec.preload],
            socket.SOCK_SEQPACKET,
            self._variables(spec.artifact, spec.project, None),
            spec.project,
            f"template{imports}",
        )

    def _agent_arguments(self, environment: Environment) -> list[str]:
        """Options of the agent (agent-protocol.md, Start); the program adds paths of programs."""
        limits = self._limits.of_interpreters(environment)
        return [
            *("--prestart", environment.interpreter),
            *("--workspace", WORKSPACE),
            *("--limits", json.dumps(limits)),
        ]

    def _variables(
        self, artifact: Artifact, project: ProjectMount | None, sizes: JailSizes | None
    ) -> dict[str, str]:
        """Make the program's environment, except for numbers of descriptors."""
        variables = {"HOME": HOMELESS, "LANG": "C.UTF-8", "TERM": "dumb"}
        if artifact.schema == 0:
            variables["HOME"] = self._home.path()
        if project is not None:
            variables["PROJECT_MOUNT"] = project.mount_point
            variables["PROJECT_MODE"] = "readonly"
        if sizes is not None:
            variables["NSM_WORKSPACE_MB"] = str(sizes.workspace_mb)
            variables["NSM_TMP_MB"] = str(sizes.tmp_mb)
            variables["NSM_SHM_MB"] = str(sizes.shm_mb)
        return variables

    async def _launch(
        self,
        artifact: Artifact,
        command: Sequence[str],
        channel: socket.SocketKind,
        variables: Mapping[str, str],
        project: ProjectMount | None,
        speaker: str,
        *,
        limited: Environment | None = None,
        policy: bytes = b"",
        code_variables: Sequence[tuple[str, str]] = (),
        group: int | None = None,
    ) -> Jail:
        """Start a program of an artifact, with a socket of that kind as descriptor 0; that blocks
        for some 2 ms.

        The variables are its environment, without those for descriptors; `code_variables` are for
        the code in the jail. `speaker` is who should speak first, for people. We must enforce the
        limits of the environment `limited`; the agent does if it is None. A template has no policy:
        its forks get their own.
        """
        program, *arguments = command
        real = await self._look_at(program)
        try:
            with ExitStack() as ours, ExitStack() as theirs:
                ends = open_ends(channel, ours, theirs)
                handed, inherited = hand_over(
                    artifact,
                    self._user,
                    theirs,
                    project=project,
                    info_end=ends.info_end,
                    policy=policy,
                    code_variables=code_variables,
                )
                # Its links may lie where the jails' user cannot go.
                words = [real, *arguments]
                if limited is not None:
                    words = with_limits(words, limited, self._limits)
                starter = spawn(
                    self._user,
                    [*gate(group), *words],
                    stdin=ends.agent_end.fileno(),
                    stdout=ends.agent_end.fileno(),
                    stderr=ends.stderr_fd,
                    inherited=inherited,
                    variables={**variables, **handed},
                )
                ours.pop_all()
        except OSError as error:
            raise self._not_executed(program, error) from error
        try:
            return await jail_of(starter, ends, speaker, group, tells=artifact.schema > 0)
        except JailNotStartedError as error:
            raise _failure(program, str(error)) from None

    async def _look_at(self, program: str) -> str:
        """Check that a program can be started, and that its file system answers: otherwise starting
        it would block everybody else. Returns its path without links.
        """
        with trio.move_on_after(LOOK_TIMEOUT_S):
            return await trio.to_thread.run_sync(
                self._check_program, program, abandon_on_cancel=True, limiter=self._looks
            )
        raise StartFailedError(
            f"The environment's program {program} cannot be run: its file system has not "
            f"answered for {LOOK_TIMEOUT_S:g} s.",
            hint="Is that a network file system whose server is gone?",
        )

    def _check_program(self, program: str) -> str:
        """Check as `_look_at`; blocks."""
        try:
            mode = os.stat(program).st_mode
            if stat.S_ISREG(mode) and os.access(program, os.R_OK):
                with open(program, "rb") as file:
                    file.read(1)
        except OSError as error:
            raise self._not_executed(program, error) from error
        if not stat.S_ISREG(mode) or not mode & 0o111:
            raise self._not_executed(program, OSError(errno.EACCES, os.strerror(errno.EACCES)))
        real = os.path.realpath(program)
        if reason := self._user.why_no_way(real):
            raise StartFailedError(
                f"The environment's program {program} cannot be run: {reason}, "
                "the user that jails run as.",
                hint="Open it to that user, start nsm as its owner, or set [defaults] jail_uid in "
                "config.toml.",
            )
        return real

    def _not_executed(self, program: str, error: OSError) -> StartFailedError:
        if error.errno not in _NO_PROGRAM or self._user.why_impossible():
            return start_error(error, self._user)
        what = f"cannot be run: {error.strerror}"
        if error.errno == errno.ENOENT:
            there = os.path.exists(program)
            what = "needs a program that is not there" if there else "is not there any more"
        return StartFailedError(
            f"The environment's program {program} {what}.",
            hint="Build the environment again, or put it back; `nsm env` shows what there is.",
        )


def _artifact_of(environment: Environment) -> Artifact:
    assert environment.artifact is not None
    return environment.artifact


def _check_mount_point(project: ProjectMount | None) -> None:
    if project is not None and (
        is_within(project.mount_point, STORE) or is_within(STORE, project.mount_point)
    ):
        raise BadProjectError(
            f"The mount point {project.mount_point} would cover {STORE}, where the environment's "
            "programs are.",
            hint="Choose another mount point, such as /project.",
        )


def _failure(program: str, words: str) -> StartFailedError:
    """Make the error for a program that has not made a jail with an agent that speaks."""
    said = "\n".join(words.strip().splitlines()[:_FIRST_LINES])
    error = explain(said, read_host_facts(), _bwrap_of(program))
    if error.hint != SEE_DOCTOR:
        return error
    return StartFailedError(
        f"The environment's program {program} has started nothing that answers: "
        f"{said or 'it said nothing about why'}",
        hint=f"Build the environment again; {SEE_DOCTOR}",
        data={"stderr": said},
    )


def _bwrap_of(program: str) -> str:
    """Path of the bwrap that a wrapper executes, which is not ours; for advice that has
    to name it.
    """
    try:
        with open(program, "rb") as file:
            found = _BWRAP.search(file.read(_SCRIPT_BYTES))
    except OSError:
        found = None
    return os.fsdecode(found[1]) if found else "bwrap"


class WrapperHome:
    """HOME for older artifacts' wrappers, which keep files there: our directory, not the user's.

    jail.nix makes each wrapper create a `passwd` and a `group` for its HOME's user once, and shows
    them in every jail. In this directory they already exist: they name nobody, and wrappers that
    start at once do not disturb each other.
    """

    def __init__(self, user: JailUser, path: str) -> None:
        self._user = user
        self._path = path

    def __repr__(self) -> str:
        return f"<WrapperHome {self._path}>"

    def path(self) -> str:
        """Path of the directory for that user."""
        try:
            self._make()
            return self._user.way_to(os.path.realpath(self._path))
        except OSError as error:
            if error.errno in EXHAUSTED:
                raise exhausted(error) from error
            raise StartFailedError(
                f"Artifacts without a schema need a HOME to write to, and {self._path} cannot be "
                f"one: {error}.",
                hint="Build the environment again with nsm's lib.mkSandbox, which needs none.",
            ) from error

    def _make(self) -> None:
        for path in (self._path, *(os.path.join(self._path, below) for below in DATA)):
            with suppress(FileExistsError):
                os.makedirs(path, mode=0o700)
                self._user.give(path)
        uid = self._user.uid
        self._write("passwd", f"user:x:{uid}:{uid}:user:/workspace:/bin/sh\n")
        self._write("group", f"user:x:{uid}:\n")

    def _write(self, name: str, text: str) -> None:
        path = os.path.join(self._path, DATA[-1], name)
        with suppress(FileExistsError), open(path, "x", encoding="ascii") as file:
            file.write(text)
            self._user.give(path)
