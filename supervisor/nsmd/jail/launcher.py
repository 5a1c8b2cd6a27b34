"""Launcher of jails with bubblewrap, one process tree each."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from copy import copy
from functools import partial

import trio

from nsm.dataclass import dataclass
from nsm.jail.failure import explain, read_host_facts
from nsm.jail.seccomp import filter_program
from nsm.wire.errors import StartFailedError
from nsmd.host.paths import is_within
from nsmd.jail.arguments import (
    AGENT_PATH,
    FILTER_PATH,
    GIT_SETTINGS_PATH,
    IMAGE_PLACES,
    NAME_FILES,
    PLACES,
    SYNTHETIC_FILES,
    TEMPLATE_PATH,
    BindMount,
    FileData,
    JailContent,
    TemplateSpec,
    agent_command,
    needed_binds,
    needed_links,
    session_arguments,
    template_arguments,
    template_command,
)
from nsmd.jail.artifact import ArtifactLauncher
from nsmd.jail.bubblewrap import (
    Bubblewrap,
    find_bwrap,
    limit_namespaces,
    missing_bwrap,
    probe_bwrap,
)
from nsmd.jail.host import GitSettings, HostSystem, network_files, scan_host
from nsmd.jail.process import Jail
from nsmd.jail.program_code import AGENT, TEMPLATE, ProgramCode, source_of
from nsmd.jail.project import (
    CHANGED,
    PROJECT,
    WORK,
    NoCopyError,
    NoWritableRootError,
    OverlaySpace,
    open_project,
)
from nsmd.jail.starting import (
    Ends,
    JailNotStartedError,
    gate,
    jail_of,
    memory_file,
    open_ends,
    spawn,
    start_error,
)
from nsmd.jail.user import JailUser, PrivateMounts, enter_private_mounts
from nsmd.model.policy import (
    INODES_PER_MB,
    POLICY_PATH,
    MountRule,
    Policy,
    jail_variables,
    policy_of,
    session_file_systems,
)
from nsmd.model.values import (
    Artifact,
    Environment,
    ImageRoot,
    JailSpec,
    Links,
    SessionLimits,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JailPlan:
    """Jail for bwrap to start: what it shows, the command of its PID 1 or of that one's only child,
    which gets a socket as descriptor 0, and our own files, by path.

    `arguments` makes bwrap's arguments from its content, `speaker` is who should speak first, for
    people. The filter that bwrap installs is in classic BPF. There is room for an overlay's changes
    unless the project is read-only. The group is as in `Launcher.launch`.
    """

    shown: TemplateSpec
    command: list[str]
    arguments: Callable[[JailContent], list[str]]
    channel: socket.SocketKind
    programs: Mapping[str, bytes]
    speaker: str = "agent"
    system_calls: bytes | None = None
    copy: OverlaySpace | None = None
    group: int | None = None


class BwrapLauncher:
    """Launcher of sessions in jails of their own, and of templates' jails: with bubblewrap, or by
    the programs of an environment's artifact (`open_artifacts`).

    bwrap is started in the calling thread, which should be the main one (`spawn`).

    Args:
        bwrap_path: absolute path from `find_bwrap`; None makes launches fail with the way to get
            it, until it is on `search_path`.
        jail_uid: user and group of all jails on the host, if the supervisor runs as root; else they
            run as its own user.
        agent_source: the agent's program; None for the installed one.

    Attributes:
        system_calls: filter of code in jails, in classic BPF; None if there is no table for this
            machine's system calls.
    """

    def __init__(
        self,
        bwrap_path: str | None,
        jail_uid: int | None = None,
        *,
        mounts: PrivateMounts | None = None,
        agent_source: bytes | None = None,
        limits: SessionLimits | None = None,
        search_path: str = "",
    ) -> None:
        self.user = JailUser(jail_uid, mounts)
        self.system_calls = filter_program(platform.machine())
        self.limits = limits or SessionLimits()
        self.bwrap_path = bwrap_path
        self._search_path = search_path
        self.git = GitSettings(search_path, {})
        self.agent_source = agent_source
        self._agent_code = ProgramCode(AGENT, AGENT_PATH)
        self._template_code = ProgramCode(TEMPLATE, TEMPLATE_PATH)
        self._artifacts: ArtifactLauncher | None = None
        self._bubblewrap: Bubblewrap | None = None
        self._host: HostSystem | None = None

    @classmethod
    def for_host(
        cls, search_path: str, jail_uid: int, *, limits: SessionLimits | None = None
    ) -> BwrapLauncher:
        """Make the launcher for this process; as root, the process first gets mounts of its own.

        Call it in the main thread before others exist.
        """
        mounts = enter_private_mounts() if os.geteuid() == 0 else None
        return cls(
            find_bwrap(search_path),
            jail_uid,
            mounts=mounts,
            limits=limits,
            search_path=search_path,
        )

    def with_agent(self, source: bytes) -> BwrapLauncher:
        """Make the same launcher with another program as the agent."""
        made = copy(self)
        made.agent_source = source
        return made

    @asynccontextmanager
    async def open_artifacts(self, home: str) -> AsyncGenerator[None]:
        """Launch environments that Nix built, too; leaving ends what runs beside their jails."""
        async with trio.open_nursery() as nursery:
            self._artifacts = ArtifactLauncher(self.user, home, self.limits, nursery)
            yield
            nursery.cancel_scope.cancel()

    def _artifacts_of(self, artifact: Artifact | None) -> ArtifactLauncher | None:
        """Launcher for an environment with an artifact; None for one without."""
        if artifact is None:
            return None
        assert self._artifacts is not None, "it is open while there are such environments"
        return self._artifacts

    def __repr__(self) -> str:
        return f"<BwrapLauncher {self.bwrap_path} as user {self.user.uid}>"

    async def prepare(self, spec: JailSpec) -> None:
        """Do nothing: a cold jail needs no preparation."""

    async def launch(self, spec: JailSpec, group: int | None = None) -> Jail:
        environment, policy = spec.environment, self.policy(spec, forked=False)
        if (artifacts := self._artifacts_of(environment.artifact)) is not None:
            return await artifacts.launch(spec, policy, group)
        if environment.image is not None and environment.image.writable:
            raise NoWritableRootError(environment.name)
        limits, full = self.limits.of_interpreters(environment), spec.network.mode == "full"
        with self._copy_place(spec) as space:
            jail = await self._launch(
                JailPlan(
                    shown=TemplateSpec(
                        agent_python=environment.agent_python,
                        binds=environment.binds,
                        links=environment.links,
                        path=environment.path,
                        preload=(),
                        project=spec.project,
                        image=environment.image,
                        shown_devices=environment.shown_devices,
                        host_network=full,
                        named_hosts=spec.network.mode == "allow",
                        variables=jail_variables(environment, spec.network),
                    ),
                    command=agent_command(environment, limits, host_network=full),
                    arguments=partial(session_arguments, sizes=spec.sizes),
                    channel=socket.SOCK_STREAM,
                    programs={
                        AGENT_PATH: await self.agent_program(environment),
                        POLICY_PATH: policy.as_text().encode(),
                    },
                    system_calls=self.system_calls,
                    copy=space,
                    group=group,
                )
            )
            if space is not None:
                jail.project_copy = space.receive_layer()
        jail.policy = policy
        await limit_namespaces(
            jail.pid,
            {
                path: size_mb * INODES_PER_MB
                for path, size_mb, _ in session_file_systems(spec.sizes)
            },
            named_hosts=spec.network.mode == "allow",
        )
        return jail

    @contextmanager
    def _copy_place(self, spec: JailSpec) -> Generator[OverlaySpace | None]:
        """Make room for an overlay of the project, if it has that mode."""
        if spec.project is None or not spec.project.copied:
            yield None
            return
        program = self._program()
        if not program.overlays:
            raise NoCopyError(
                spec.project.path,
                f"bubblewrap {program.version} has no --overlay, which comes with 0.11",
            )
        with closing(OverlaySpace(spec.sizes.overlay_mb)) as space:
            yield space

    def policy(self, spec: JailSpec, *, forked: bool) -> Policy:
        """Make the policy of such a session, a fork or in a jail of its own."""
        if (artifacts := self._artifacts_of(spec.environment.artifact)) is not None:
            return artifacts.policy(spec, forked=forked)
        host, image = self._scanned_host(), spec.environment.image
        made = [POLICY_PATH, AGENT_PATH]
        if image is None:
            made += [path for path, _ in SYNTHETIC_FILES]
        elif _has_git_settings(image):
            made.append(GIT_SETTINGS_PATH)
        if spec.network.mode == "full":
            made += [path for path, _ in network_files()] if image else ["/etc/resolv.conf"]
        if spec.network.mode == "allow":
            made += [path for path, _ in NAME_FILES if path not in made]
        if forked:
            made += [TEMPLATE_PATH, FILTER_PATH]
        base = () if image is not None else ("/usr", *host.directories, *host.etc)
        return policy_of(
            spec,
            self.limits,
            "forked" if forked else "cold",
            shown=[
                *(MountRule(path=path, kind="bind", source=path) for path in base),
                *(MountRule(path=path, kind="file") for path in made),
            ],
            filtered=forked or self.system_calls is not None,
        )

    async def launch_template(self, spec: TemplateSpec, system_calls: bytes) -> Jail:
        """Start a template's jail; `socket` is its control socket. The filter of its sessions is in
        classic BPF; an artifact has its own.
        """
        if (artifacts := self._artifacts_of(spec.artifact)) is not None:
            return await artifacts.launch_template(spec)
        python = spec.agent_python
        binds = spec.binds if spec.image is None else ()  # an image's agent has the host's Python
        imports = f", which imports {', '.join(spec.preload)}," if spec.preload else ""
        return await self._launch(
            JailPlan(
                shown=spec,  # each fork gets variables of its own
                command=template_command(spec),
                arguments=template_arguments,
                channel=socket.SOCK_SEQPACKET,
                programs={
                    # Another Python than the agent's may run it, too.
                    AGENT_PATH: self.agent_source
                    or (
                        source_of(AGENT)  # the image's Python runs it, too
                        if spec.image is not None
                        else await self._agent_code.for_python(python, binds)
                    ),
                    TEMPLATE_PATH: await self._template_code.for_python(python, binds),
                    FILTER_PATH: system_calls,
                    POLICY_PATH: b"",  # each fork mounts its own over it
                },
                speaker=f"template{imports}",
            )
        )

    async def _launch(self, plan: JailPlan) -> Jail:
        git = await self.git.of(plan.shown.project)
        try:
            starter, ends = self._start(plan, git)
        except OSError as error:
            raise start_error(error, self.user) from error
        try:
            return await jail_of(starter, ends, plan.speaker, plan.group)
        except JailNotStartedError as error:
            raise explain(str(error), read_host_facts(), self.bwrap_path or "bwrap") from None

    async def agent_program(self, environment: Environment) -> bytes:
        """Return the program of PID 1."""
        if self.agent_source is not None:
            return self.agent_source
        same = environment.image is None and environment.program == environment.agent_python
        if environment.interpreter == "python" and not same:
            return source_of(AGENT)  # both versions of Python will run it
        binds = environment.binds if environment.image is None else ()
        return await self._agent_code.for_python(environment.agent_python, binds)

    def _start(self, plan: JailPlan, git: str) -> tuple[subprocess.Popen[bytes], Ends]:
        """Start bwrap; blocks for some 2 ms."""
        program, shown = self._program(), plan.shown
        with ExitStack() as ours, ExitStack() as theirs:
            ends = open_ends(plan.channel, ours, theirs)
            before, handed, mounts = self._mounts(plan, program, theirs)
            files = _files(plan, git, theirs)
            filter_fd = None
            if plan.system_calls is not None:
                filter_fd = memory_file(plan.system_calls, theirs)
            arguments = self._arguments(
                plan,
                JailContent(
                    host=self._scanned_host(),
                    mounts=mounts,
                    files=files,
                    path=shown.path,
                    info_fd=ends.info_end,
                    filter_fd=filter_fd,
                    variables=shown.variables,
                    host_network=shown.host_network,
                    links=self._links(shown, mounts),
                    image=shown.image is not None,
                    devices=() if shown.shown_devices is None else shown.shown_devices.nodes,
                ),
            )
            # Not on the command line, which everyone on the host and in the jail can read.
            arguments_fd = memory_file(b"".join(os.fsencode(a) + b"\0" for a in arguments), theirs)
            starter = self._spawn(
                [
                    *gate(plan.group),
                    *before,
                    program.path,
                    "--args",
                    str(arguments_fd),
                    "--",
                    *plan.command,
                ],
                user=self.user if plan.copy is None else None,
                channel=ends.agent_end,
                stderr_fd=ends.stderr_fd,
                inherited=[
                    ends.info_end,
                    arguments_fd,
                    *(() if filter_fd is None else (filter_fd,)),
                    *(file.descriptor for file in files),
                    *handed,
                    *(mount.source for mount in mounts if isinstance(mount.source, int)),
                ],
            )
            ours.pop_all()
        return starter, ends

    def _links(self, shown: TemplateSpec, mounts: Sequence[BindMount]) -> Links:
        if shown.image is not None:
            place = () if shown.project is None else (shown.project.mount_point,)
            return needed_links(shown.links, place, IMAGE_PLACES)
        host = self._scanned_host()
        base = (*host.directories, *(path for _, path in host.links))
        return needed_links(shown.links, [*base, *(mount.target for mount in mounts)])

    def _arguments(self, plan: JailPlan, content: JailContent) -> list[str]:
        return plan.arguments(content)

    def _spawn(
        self,
        command: list[str],
        *,
        user: JailUser | None,
        channel: socket.socket,
        stderr_fd: int,
        inherited: list[int],
    ) -> subprocess.Popen[bytes]:
        return spawn(
            user,
            command,
            stdin=channel.fileno(),
            stdout=channel.fileno(),
            stderr=stderr_fd,
            inherited=inherited,
        )

    def _mounts(
        self, plan: JailPlan, program: Bubblewrap, owned: ExitStack
    ) -> tuple[list[str], list[int], list[BindMount]]:
        """Collect the mounts beyond the base system, with the command before bwrap's and its
        descriptors. Descriptors go to `owned`."""
        shown = plan.shown
        places = PLACES if shown.image is None else IMAGE_PLACES
        mounts: list[BindMount] = [
            BindMount(source=self._way_to(bind.source, shown.image), target=bind.target)
            for bind in needed_binds(shown.binds, shown.project, places)
        ]
        if shown.project is not None:
            git = (
                shown.project.git if shown.image is None else None
            )  # a root of its own has no room
            for project in (git, shown.project) if git else (shown.project,):
                path, directory = open_project(self.user, project)
                owned.callback(os.close, directory)
                if project.copied and plan.copy is not None:
                    place, layer = project.mount_point, (CHANGED, WORK)
                    mounts.append(BindMount(source=PROJECT, target=place, layer=layer))
                    handed = [directory, *plan.copy.inherited]
                    return plan.copy.command(directory, self.user), handed, mounts
                # A descriptor is exactly what was checked; older versions take a path, just later.
                source = directory if program.binds_descriptors else path
                mounts.append(BindMount(source=source, target=project.mount_point))
        return [], [], mounts

    def _way_to(self, source: str, image: ImageRoot | None) -> str:
        """Path by which the jails' user reaches what a jail shows."""
        if image is None or not is_within(source, image.directory):
            return self.user.way_to(source)
        if image.writable:
            return self.user.way_to_own(image.directory)
        # One way to all of the image: some of what lies in it are files.
        return self.user.way_to(image.directory) + source[len(image.directory) :]

    def _scanned_host(self) -> HostSystem:
        """Scan the parts of the host's root directory that jails show."""
        if self._host is None:
            self._host = scan_host()
        return self._host

    def _program(self) -> Bubblewrap:
        """Return bwrap with its features, found out once; a later installation is noticed."""
        if self.bwrap_path is None:
            self.bwrap_path = find_bwrap(self._search_path)
        if self.bwrap_path is None:
            raise missing_bwrap()
        if self._bubblewrap is None:
            folder, name = os.path.split(self.bwrap_path)
            program = probe_bwrap(os.path.join(self.user.way_to(folder), name))
            if program.missing:
                raise StartFailedError(
                    f"{program.path} is bubblewrap {program.version} and lacks "
                    f"{', '.join(program.missing)}.",
                    hint="nsm needs bubblewrap 0.8 or newer.",
                )
            self._bubblewrap = program
        return self._bubblewrap


def _has_git_settings(image: ImageRoot) -> bool:
    """Return whether a jail can have git's settings: there has to be a file to mount them over."""
    return image.writable or os.path.isfile(image.directory + GIT_SETTINGS_PATH)


def _files(plan: JailPlan, git: str, owned: ExitStack) -> list[FileData]:
    image = plan.shown.image
    # The unpacked image has those files already, but for the user's name.
    made = dict(SYNTHETIC_FILES) if image is None else {}
    if image is None or _has_git_settings(image):
        made[GIT_SETTINGS_PATH] = git
    if plan.shown.host_network:
        made.update(network_files())
    if plan.shown.named_hosts:
        made.update(NAME_FILES)
    contents = {**plan.programs, **{path: os.fsencode(text) for path, text in made.items()}}
    return [
        FileData(descriptor=memory_file(content, owned), target=path)
        for path, content in contents.items()
    ]
