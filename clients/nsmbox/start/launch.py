"""Starts the jail, and waits for it: the last steps, each of which changes something."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import NoReturn

from nsm import paths
from nsm.dataclass import dataclass, replace
from nsm.jail import landlock
from nsmbox.host import nsm_itself
from nsmbox.model.plan import BoxError, Plan
from nsmbox.planning import bwrap
from nsmbox.profiles import Profile
from nsmbox.protection import mount_sources
from nsmbox.protection.secrets import printable, within
from nsmbox.start import relay
from nsmbox.start.confinement import Gate, limit_descriptors

_DOUBTFUL = (
    ("kernel/apparmor_restrict_unprivileged_userns", "1"),
    ("kernel/unprivileged_userns_clone", "0"),
    ("user/max_user_namespaces", "0"),
)
"""Settings of /proc/sys. Others that forbid namespaces are rare: bwrap's words have to do then."""


MAX_ARGUMENTS = 8990
"""bwrap's own limit is 9000, those of `--args` with them."""


_BWRAP_DESCRIPTORS = 16
"""More than bwrap itself opens at once."""

_ATTEMPTS = 50
"""Attempts to make a box while its files are replaced on the host; each takes some 50 ms."""

_MAX_SAID_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Duties of the process that waits for a box.

    Attributes:
        alive: descriptor that says that the box runs, for as long as any process has it.
        keep: further descriptors of that process, which the box does not get.
        afterwards: done when the box has ended, with a descriptor of its mounts if they could be
            held.
        give_up: done where there is no box in the end.
        watch: done in a thread of it while the box runs.
    """

    alive: int | None = None
    keep: tuple[int, ...] = ()
    afterwards: Callable[[int | None], None] | None = None
    give_up: Callable[[], None] | None = None
    watch: Callable[[], None] | None = None


_NOTHING = Wait()


def make_state(profile: Profile, home: str) -> None:
    """Make the directories that boxes of a profile keep, where they are absent."""
    for state in profile.state:
        hint = "It is where the agent keeps its things; make it a directory of yours."
        _make_directory(os.path.join(home, state.host), hint)


def make_persisted(directories: Sequence[str]) -> None:
    """Make the directories that boxes of a project keep, where they are absent."""
    for path in directories:
        hint = "It is named by `persist` in [box]; make it a directory of yours."
        _make_directory(path, hint, private=os.path.dirname(os.path.dirname(path)))


def _make_directory(path: str, hint: str, *, private: str = "", why: str = "") -> None:
    try:
        if private:
            paths.ensure_private_dir(private)
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        reason = error.strerror or error
        raise BoxError(f"{path} cannot be made{why}: {reason}", hint=hint) from error


def make_own(directories: Sequence[str]) -> bool:
    """Make nsm's own directories where they are absent and would lie in a box's directory: what is
    not there cannot be hidden, and a box could write the configuration of the next one.
    """
    made = False
    links = [paths.tools_dir()] if os.path.islink(paths.tools_dir()) else []
    for path in (paths.config_dir(), paths.state_dir(), paths.cache_dir(), *links):
        real = os.path.realpath(path)
        inside = next((each for each in directories if real.startswith(f"{each}/")), None)
        if inside is None or os.path.lexists(real):
            continue
        hint = "Start the box in a directory that has nothing of nsm's in it."
        _make_directory(real, hint, why=f", and without it a box in {inside} could")
        made = True
    return made


def check_namespaces(program: str, root: str = "/") -> None:
    """Make sure that no setting forbids the namespaces that a box is made of.

    Once bwrap has been executed, there is nobody left to say which one it is.

    Args:
        root: where the host's root directory is; other than `/` in tests only.
    """
    # What a setting means only trying tells: there may be an exception for this bwrap, or it may
    # be setuid. It takes 5 ms, on hosts with such a setting alone.
    if not any(_setting(root, name) == value for name, value in _DOUBTFUL):
        return
    if said := _try(program):
        raise explained(said, program, root)


def explained(words: str, program: str, root: str = "/") -> BoxError:
    """The error for what bwrap said as it failed."""
    from nsm.jail import failure  # noqa: PLC0415  # where something has failed

    error = failure.explain(words, failure.read_host_facts(root), program)
    return BoxError(error.message, hint=error.hint)


def _setting(root: str, name: str) -> str:
    try:
        with open(os.path.join(root, "proc/sys", name), encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _try(program: str) -> str:
    """Try bwrap, and return its message if it cannot make namespaces; else nothing."""
    import subprocess  # noqa: PLC0415

    words = (program, "--unshare-all", "--ro-bind", "/", "/", "--", "/bin/sh", "-c", ":")
    tried = subprocess.run(
        words,
        cwd="/",
        env={},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return tried.stderr if tried.returncode else ""


def become(
    plan: Plan,
    program: str,
    *,
    sockets: str = "",
    wait: Wait = _NOTHING,
    tell: Callable[[str], None] = lambda _: None,
) -> NoReturn:
    """Execute bwrap, in a child for which this process waits: its exit code is the command's, and
    it passes signals on (see `nsmbox.start.relay`).
    """
    try:
        _become(plan, program, sockets, wait, tell)
    except BaseException as error:
        if wait.give_up is not None:
            with suppress(BoxError, OSError):
                wait.give_up()
        if isinstance(error, OSError) and error.errno == errno.EMFILE:
            raise _too_few_descriptors(plan) from error
        raise


def _too_few_descriptors(plan: Plan) -> BoxError:
    return BoxError(
        f"the box has {len(plan.mounts)} mounts, and bwrap needs a descriptor for most of them; "
        f"this shell allows {resource.getrlimit(resource.RLIMIT_NOFILE)[1]}",
        hint="Raise the limit (`ulimit -n 8192`), or add fewer directories: one that they lie in, "
        "or some without :rw, which have fewer mounts.",
    )


def _become(
    plan: Plan, program: str, sockets: str, wait: Wait, tell: Callable[[str], None]
) -> NoReturn:
    for number in open_descriptors():
        os.set_inheritable(number, False)
    if wait.alive is not None:
        os.set_inheritable(wait.alive, True)
    limit_descriptors(plan.limits.descriptors, bwrap.descriptors(plan.mounts))
    _set_signals()
    heard = relay.prepare()
    replaced: set[int] = set()
    for _ in range(_ATTEMPTS):
        opened = mount_sources.open_sources(plan.mounts)
        gate, said = Gate(), memory_file(b"")
        child = relay.fork()
        if child == 0:
            mounts, kept = mount_sources.copied(plan.mounts, opened, replaced)
            shown = replace(plan, mounts=mounts)
            _execute(shown, program, sockets, wait.alive, kept, gate, said)
        lacking = gate.set_limits(plan.limits, plan.inodes, _links(plan), alone=not sockets)
        # bwrap says something if it fails, before its processes end.
        if (error := _not_made(said, program)) is None:
            if lacking:
                tell(f"the box lacks limits: {lacking}")
            if now := mount_sources.replaced(plan.mounts, opened):
                tell(f"{_targets(plan, now)} was replaced meanwhile, and the box can change it")
            _follow(child, heard, gate.mounts, said, program, wait, tell)
        os.waitpid(child, 0)
        now = mount_sources.replaced(plan.mounts, opened)
        if not now:
            raise error
        replaced.update(now)
        for number in (*opened.values(), said, *([] if gate.mounts is None else [gate.mounts])):
            os.close(number)
    raise BoxError(
        f"the box does not start while another program replaces {_targets(plan, replaced)}.",
        hint="Start it when that program has ended, or let the box change that (--unprotect).",
    )


def _links(plan: Plan) -> dict[str, str]:
    """Links that are to stay as they are, but those that the box does not see."""
    hidden = [mount.target for mount in plan.mounts if mount.kind == "mask"]
    return {
        mount.target: mount.source
        for mount in plan.mounts
        if mount.kind == "link" and not any(within(mount.target, each) for each in hidden)
    }


def _targets(plan: Plan, indexes: Collection[int]) -> str:
    return ", ".join(sorted(printable(plan.mounts[index].target) for index in indexes))


def _execute(
    plan: Plan,
    program: str,
    sockets: str,
    alive: int | None,
    opened: dict[int, int],
    gate: Gate,
    said: int,
) -> NoReturn:
    """Execute bwrap.

    Args:
        gate: somebody outside lets the command start.
        said: file for bwrap's own words; the starter gives the command its stderr.
    """
    from nsm.jail.seccomp import filter_program  # noqa: PLC0415  # not for --dry-run's sake

    syscalls = filter_program(os.uname().machine)
    if not mount_sources.is_known_to(program):
        # It finds them by path once more; what has been exchanged up to now is at least noticed.
        for number in opened.values():
            os.close(number)
        opened = {}
    lines = [
        *gate.arguments,
        *bwrap.arguments(
            plan, memory_file, syscalls=syscalls, sockets=sockets, opened=opened, alive=alive
        ),
        *bwrap.variables(plan),
    ]
    if len(lines) > MAX_ARGUMENTS:
        raise BoxError(
            f"the box has {len(plan.mounts)} mounts, which are too many for bwrap",
            hint="See with --dry-run what is protected, and leave some of it out (--unprotect).",
        )
    if len(lines) + len(plan.command) > MAX_ARGUMENTS:
        raise BoxError(
            f"the command has {len(plan.command)} words, and bwrap takes no more than "
            f"{MAX_ARGUMENTS} with those that make the box",
            hint="Expand them inside: nsm box -- sh -c 'COMMAND *'",
        )
    # Through a descriptor: other users read command lines, and /proc/1 in the box shows it.
    listed = memory_file(b"".join(os.fsencode(line) + b"\0" for line in lines))
    if listed + _BWRAP_DESCRIPTORS > resource.getrlimit(resource.RLIMIT_NOFILE)[0]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    command, stderr = plan.command, None
    if _is_open(2):
        stderr = os.dup(2)
        os.set_inheritable(stderr, True)
        os.dup2(said, 2)
        command = nsm_itself.with_stderr(command, stderr)
    landlock.close_scopes()
    try:
        os.execve(  # noqa: S606
            program, ["bwrap", "--args", str(listed), "--", *command], {}
        )
    except OSError as error:
        if stderr is not None:
            os.dup2(stderr, 2)
        raise BoxError(
            f"{program} cannot be executed: {error.strerror}",
            hint="`claudebox --check` tells what is missing.",
        ) from error


def _follow(
    child: int,
    heard: Collection[signal.Signals],
    mounts: int | None,
    said: int,
    program: str,
    wait: Wait,
    tell: Callable[[str], None],
) -> NoReturn:
    """Wait for the box outside of it."""

    def ended() -> None:
        if (error := _not_made(said, program)) is not None:
            tell(f"{error.message} {error.hint}")
        if wait.afterwards is not None:
            wait.afterwards(mounts)

    keep = (said, *wait.keep, *(each for each in (wait.alive, mounts) if each is not None))
    relay.follow(child, heard, ended, keep=keep, watch=wait.watch)


def _not_made(said: int, program: str) -> BoxError | None:
    """The error for a box of which bwrap said that it cannot be; None if it said nothing."""
    words = os.pread(said, _MAX_SAID_BYTES, 0).decode(errors="replace")
    return explained(words, program) if words else None


def _set_signals() -> None:
    # What the terminal sends to the whole group is for the command; bwrap would die of it, and
    # with it everything in the box.
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    # Python ignores these for itself.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def open_descriptors() -> list[int]:
    """All but the three; what a caller has left open would be a way out of the box."""
    try:
        numbers = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        numbers = list(range(os.sysconf("SC_OPEN_MAX")))
    return [number for number in numbers if number > 2 and _is_open(number)]


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def memory_file(data: bytes) -> int:
    """A descriptor from which this can be read, by programs that are executed, too."""
    number = os.memfd_create("nsm-box", 0)
    view = memoryview(data)
    while view:
        view = view[os.write(number, view) :]
    os.lseek(number, 0, os.SEEK_SET)
    return number
