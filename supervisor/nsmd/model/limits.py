"""Limits of sessions and of clients, the rate at which a client's requests are read, and the first
checks of a request.

An agent in a box may run code, and this code must not be a way out of its box: its sessions reach
no more than the box does, whatever its clients say themselves. A client that floods is not refused:
nothing more is read from it for a while, so that its socket fills and it waits. Other clients are
served meanwhile.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Mapping, Sequence
from typing import Any

import trio

from nsm.dataclass import dataclass, replace
from nsm.wire.errors import (
    BadRequestError,
    CodeTooLargeError,
    UnknownSessionError,
    WrongEnvironmentError,
)
from nsmd.host.descriptors import PER_SESSION, Shares
from nsmd.model.host_rules import HOST_NAME, AllowList, HostRule
from nsmd.model.settings import Settings
from nsmd.model.values import (
    MAX_CODE_BYTES,
    NO_NETWORK,
    ClientIdentity,
    Environment,
    JailSizes,
    JailSpec,
    NetworkRule,
    ProjectMount,
    RunRequest,
    SessionLimits,
    SetupStep,
)

MESSAGES_PER_S = 10_000.0
"""Several times the rate of a client that waits for answers; a flood of the cheapest requests stays
below half a processor.
"""

BURST = 2_000
"""Messages at once, at any rate: calls that a client has saved up."""

TURN = 64
"""Messages of one client in one turn of the event loop."""


class ReadRate:
    """A token bucket. While there are tokens, a message costs one subtraction."""

    __slots__ = ("_burst", "_filled_s", "_per_s", "_tokens")

    def __init__(self, per_s: float = MESSAGES_PER_S, burst: int = BURST) -> None:
        self._per_s = per_s
        self._burst = self._tokens = float(burst)
        self._filled_s = trio.current_time()

    def __repr__(self) -> str:
        return f"<ReadRate {self._tokens:.0f} of {self._burst:.0f}>"

    async def taken(self, messages: int) -> None:
        """Wait until so many messages may be taken."""
        self._tokens -= messages
        if self._tokens > 0:
            return
        now = trio.current_time()
        self._tokens = min(self._tokens + (now - self._filled_s) * self._per_s, self._burst)
        self._filled_s = now
        if self._tokens < 0:
            await trio.sleep(-self._tokens / self._per_s)


Variables = tuple[tuple[str, str], ...]

IN_FLIGHT = 320
"""Descriptors in one message (253, SCM_MAX_FD of include/net/scm.h), and a burst of starts."""

FEWEST_DESCRIPTORS = 64
"""Interpreters do not start with fewer."""

SETUP_TIMEOUT_S = 60.0
"""Time for each step of an environment's set-up. A hook that builds something takes seconds."""

MAX_INHERITED_BYTES = 96 * 1024
"""Total size of the values of all variables that a client passes on: room for certificates."""


def check_inherited(wanted: Sequence[str], given: Mapping[str, object]) -> Variables:
    """Choose the variables that a client passes on to its project's shell.

    Raises `BadRequestError`.
    """
    chosen: list[tuple[str, str]] = []
    size = 0
    for name in sorted(set(wanted) & given.keys()):
        value = given[name]
        try:
            # As in an environment, which may have bytes that are not UTF-8.
            encoded = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else b"\0"
        except UnicodeEncodeError:
            encoded = b"\0"
        if not isinstance(value, str) or b"\0" in encoded:
            raise BadRequestError(f"The value of {name} cannot be that of a variable.")
        chosen.append((name, value))
        size += len(encoded)
    if size > MAX_INHERITED_BYTES:
        raise BadRequestError(
            f"The variables of [project.inherit_env] have {size} bytes, and at most "
            f"{MAX_INHERITED_BYTES} are handed on.",
            hint="Name fewer of them in config.toml, or put large values into files.",
        )
    return tuple(chosen)


def session_limits(settings: Settings) -> SessionLimits:
    """Compute the limits of every session.

    The kernel counts descriptors in flight between processes per host user, for all sessions
    together, against the limit of the sender (unix(7), ETOOMANYREFS). A fork takes one in flight,
    so the supervisor's limit must be higher than what sessions can ever have there.
    """
    ours = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return SessionLimits(
        grace_s=settings.defaults.interrupt_grace_seconds,
        max_queued=settings.session.max_queued,
        processes=settings.defaults.processes,
        descriptors=max(FEWEST_DESCRIPTORS, min(settings.defaults.descriptors, ours - IN_FLIGHT)),
        undo=settings.session.undo,
        undo_mb=settings.session.undo_mb,
    )


_IMPORTS = """\
def nsm_preload(names):
    import importlib
    failed = []
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:
            failed.append(f"{{name}}: {{type(error).__name__}}: {{error}}")
    if failed:
        raise ImportError("; ".join(failed))
try:
    nsm_preload({modules!r})
finally:
    del nsm_preload
"""
"""A function of its own, so that code finds no variables of it."""


def steps_of(environment: Environment) -> tuple[SetupStep, ...]:
    """Steps that an interpreter runs before any other code: those of the environment, and the
    imports of `preload` in an image, for interpreters that are no forks.
    """
    if environment.image is None or environment.interpreter != "python" or not environment.preload:
        return environment.setup
    code = _IMPORTS.format(modules=environment.preload)
    return (*environment.setup, SetupStep(name="modules to preload", code=code, preloads=True))


def setup_of(environment: Environment, grace_s: float) -> dict[str, Any] | None:
    """Make the set-up of an environment for the agent; None if there is none."""
    steps = steps_of(environment)
    if not steps:
        return None
    return {
        "interpreter": environment.interpreter,
        "steps": [
            {
                "name": step.name,
                "code": step.code,
                **({"preloads": True} if step.preloads else {}),
            }
            for step in steps
        ],
        "timeout_s": SETUP_TIMEOUT_S,
        "grace_s": grace_s,
    }


def longest_setup_s(environment: Environment, grace_s: float) -> float:
    """Compute the longest time for the set-up of an environment, however often a step makes its
    interpreter start again.
    """
    steps = len(steps_of(environment))
    return steps * (steps + 1) / 2 * (SETUP_TIMEOUT_S + grace_s)


def jail_sizes(settings: Settings) -> JailSizes:
    """Compute the sizes of the file systems of new sessions."""
    return JailSizes(
        workspace_mb=settings.defaults.workspace_mb,
        tmp_mb=settings.defaults.tmp_mb,
        shm_mb=settings.defaults.shm_mb,
        overlay_mb=settings.defaults.overlay_mb,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRoom:
    """Room for sessions, without spares.

    Attributes:
        descriptors: number of descriptors that they may hold together; None for no limit.
    """

    configured: int
    descriptors: int | None = None
    files: int = 0

    @property
    def sessions(self) -> int:
        """Largest number of sessions, if none holds more descriptors than usual."""
        if self.descriptors is None:
            return self.configured
        return min(self.configured, self.descriptors // PER_SESSION)

    def why_full(self, sessions: int) -> str:
        """Name the limit that so many live sessions have reached; the end of a sentence."""
        if sessions >= self.configured:
            return "as many as `max_sessions` in [session] of config.toml allows"
        return f"as many as the {self.files} files that the supervisor may open allow"

    def remedy(self, sessions: int) -> str:
        """Say how to get more than so many; half a sentence."""
        if sessions >= self.configured:
            return "raise `max_sessions` in [session] of config.toml and run `nsm reload --config`"
        return (
            f"let the supervisor open more than {self.files} files (`ulimit -Hn`, "
            "LimitNOFILE= of a systemd unit) and restart it"
        )


def session_room(settings: Settings, shares: Shares | None = None) -> SessionRoom:
    """Compute the room for sessions: as configured, and as far as descriptors suffice."""
    configured = settings.session.max_sessions
    if shares is None:
        return SessionRoom(configured=configured)
    possible = max(1, shares.sessions - settings.pool.max_spares)
    return SessionRoom(
        configured=configured, descriptors=possible * PER_SESSION, files=shares.limit
    )


def check_same(
    request: RunRequest,
    rule: NetworkRule,
    project: ProjectMount | None,
    secrets: tuple[str, ...] = (),
) -> None:
    """Check that a request for a live session asks for nothing else. Raises `BadRequestError`."""
    wanted, asked, mode = request.client.network, request.client.project, request.project_mode
    if wanted is not None and (wanted.mode, set(wanted.allow)) != (rule.mode, set(rule.allow)):
        raise _other(
            request.session,
            f"its network is {_network(rule)}, not {_network(wanted)}",
            hint="Change it with `nsm net SESSION`, or use another session name.",
        )
    granted = request.client.secrets
    if granted is not None and set(granted) != set(secrets):
        known = ", ".join(secrets) or "none"
        raise _other(
            request.session,
            f"its secrets are {known}, not {', '.join(granted) or 'none'}",
            hint="A session gets its secrets at its start: use another session name.",
        )
    if request.project_chosen and _place(asked) != _place(project):
        raise _other(request.session, f"it sees {_shown(project)}, not {_shown(asked)}")
    if mode is not None and (project is None or project.mode != mode):
        known = "it sees no project" if project is None else f"its project's mode is {project.mode}"
        raise _other(request.session, f"{known}, not {mode}" if project is not None else known)


def _other(name: str | None, difference: str, hint: str = "") -> BadRequestError:
    return BadRequestError(
        f"Session {name!r} exists already, and {difference}; the code was not run.",
        hint=hint or "Use another session name, or end this one with `nsm kill`.",
    )


def _network(rule: NetworkRule) -> str:
    if rule.mode == "allow":
        return f"limited to {', '.join(rule.allow) or 'an empty list of hosts'}"
    return rule.mode


def _place(project: ProjectMount | None) -> tuple[str, str] | None:
    return None if project is None else (project.path, project.mount_point)


def _shown(project: ProjectMount | None) -> str:
    return "no project" if project is None else f"{project.path} at {project.mount_point}"


def check_code(code: str) -> None:
    """Check the size of code. Raises `CodeTooLargeError`."""
    # UTF-8 takes at most four bytes per character: short texts need no second look.
    if len(code) * 4 <= MAX_CODE_BYTES:
        return
    size = len(code.encode("utf-8", "surrogatepass"))
    if size > MAX_CODE_BYTES:
        raise CodeTooLargeError(
            f"The code has {size} bytes; the limit is {MAX_CODE_BYTES}.",
            hint="Write data to files in several parts (`nsm cp` copies them), or mount a project.",
        )


def check_request(
    request: RunRequest,
    settings: Settings,
    environment: Environment,
    *,
    one_shot: bool,
    busy: bool,
) -> None:
    """Check what a request wants to be done. Raises `CodeTooLargeError` or `BadRequestError`."""
    check_code(request.code)
    if request.undo:
        _check_undo(request, settings, environment, busy=busy)
    if request.reset and one_shot:
        raise BadRequestError(
            "`reset` restarts a session's interpreter, and the call names no session; the "
            "code was not run.",
            hint="Name the session, or leave `reset` out: without a session all is fresh.",
        )


def code_of_undo(calls: int) -> str:
    """Comment that stands for the code of an undo in transcripts."""
    return "# undo the last call" if calls == 1 else f"# undo the last {calls} calls"


def _check_undo(
    request: RunRequest, settings: Settings, environment: Environment, *, busy: bool
) -> None:
    if not settings.session.undo:
        if environment.interpreter != "python":
            raise BadRequestError(
                "Earlier states are kept of Python only; nothing was undone.",
                hint="The user's `nsm fork` copies a Bash session as it is now.",
            )
        raise BadRequestError(
            "Undo is turned off; nothing was undone.",
            hint="Set `undo = 5` in [session] of config.toml and type `nsm reload`: then it works "
            "in sessions that start from now on.",
        )
    if busy:
        raise BadRequestError(
            f"Code runs in session {request.session!r}; nothing was undone.",
            hint="Wait for its end, or interrupt it (`nsm interrupt`), and undo again.",
        )


def check_keeps_state(environment: Environment) -> None:
    """Check that an environment keeps state. Raises `BadRequestError`."""
    if not environment.keeps_state:
        raise BadRequestError(
            f"Environment {environment.name!r} keeps no state, so it has no sessions.",
            hint="Name no session: the code then runs in a fresh jail.",
        )


def check_can_be_bound(environment: Environment, bound: NetworkRule) -> None:
    """Check that nsm can bound the network of an environment's jails. Raises `BadRequestError`."""
    older = environment.artifact is not None and environment.artifact.schema == 0
    if older and bound.mode != "full":
        raise BadRequestError(
            f"Environment {environment.name!r} decides itself what its code reaches, and this "
            "client's code must not reach everything.",
            hint="Build it with the mkSandbox of this nsm, or use another environment.",
        )


def wrong_environment(name: str, bound: Environment, asked: Environment) -> WrongEnvironmentError:
    """Make the error for a request to run another environment's code in a session."""
    data = {"session_env": bound.name, "env": asked.name}
    if bound.name == asked.name:
        return WrongEnvironmentError(
            f"Session {name!r} runs {bound.name} of {bound.source}, which another client has.",
            hint=f"Use another session name for {asked.name} of {asked.source}.",
            data=data,
        )
    return WrongEnvironmentError(
        f"Session {name!r} runs {bound.name}, not {asked.name}.",
        hint=f"Use another session name for {asked.name}, or the environment {bound.name}.",
        data=data,
    )


def time_limit(asked_s: float | None, environment: Environment) -> tuple[float, float | None]:
    """Compute the time limit that applies and, if it was clamped, the requested one.

    Raises `BadRequestError`.
    """
    if asked_s is None:
        return environment.timeout_s, None
    if math.isnan(asked_s) or asked_s <= 0:
        raise BadRequestError(
            f"timeout must be a number of seconds above 0, not {asked_s}.",
            hint=f"Leave it out for the default of {environment.timeout_s:g} s.",
        )
    if asked_s > environment.timeout_s:
        return environment.timeout_s, asked_s
    return asked_s, None


def no_session(name: str | None) -> UnknownSessionError:
    """Make the error for a session that should be there already."""
    return UnknownSessionError(
        f"No session {(name or '')[:200]!r}; nothing was run.",
        hint="It has ended. Make another one.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Limits of all clients of one listener.

    Attributes:
        directory: absolute working directory of their programs; None if there is none.
        project: the same directory, as their sessions see it; None for none.
        writable: absolute directories and files that they can write to. Nothing in them is started
            for them on the host.
        network: upper bound of their new sessions' network; None for the configured one.
    """

    scope: str
    directory: str | None = None
    project: ProjectMount | None = None
    network: NetworkRule | None = None
    programs: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()


def reach_of(client: ClientIdentity, spec: JailSpec) -> JailSpec:
    """Return what a client's new session may reach, and which secrets it has."""
    if client.network is not None:
        spec = replace(spec, network=client.network)
    if client.bound is not None:
        # A box has secrets, or not; its own proxy has nothing to do with its sessions.
        return replace(spec, network=narrowed(spec.network, client.bound), secrets=())
    return spec if client.secrets is None else replace(spec, secrets=client.secrets)


def narrowed(rule: NetworkRule, bound: NetworkRule | None) -> NetworkRule:
    """Return the rule for what both allow."""
    if bound is None or bound.mode == "full":
        return rule
    if rule.mode == "off" or bound.mode == "off":
        return NO_NETWORK
    if rule.mode == "full":
        return bound
    asked, most = AllowList.of(rule.allow).rules, AllowList.of(bound.allow).rules
    both = [
        rule.text
        for rule in asked
        if any(_covers(other, rule) for other in most)
        and not any(_would_hide(rule, other) for other in most)
    ]
    both += [
        other.text
        for other in most
        if other.text not in both and any(_covers(rule, other) for rule in asked)
    ]
    return NetworkRule(mode="allow", allow=tuple(both))


def _would_hide(entry: HostRule, bound: HostRule) -> bool:
    """Return whether requests that a bound's rule forbids could pass by an entry: it is not the
    rule's own part, and the rule is not kept beside it or does not go before it."""
    if bound.request is None or _covers(bound, entry) or not _overlaps(bound, entry):
        return False
    return entry.request is not None or not _covers(entry, bound)


def _overlaps(one: HostRule, other: HostRule) -> bool:
    """Return whether both match some connection to a name."""
    if one.ports is not None and other.ports is not None and one.ports.isdisjoint(other.ports):
        return False
    if one.network is not None or other.network is not None:
        return False
    if one.name is None or other.name is None or one.name == other.name:
        return True
    return (one.subdomains and other.name.endswith("." + one.name)) or (
        other.subdomains and one.name.endswith("." + other.name)
    )


def _covers(wide: HostRule, narrow: HostRule) -> bool:
    """Return whether one entry allows all that the other does; False if ports overlap only in
    part."""
    if wide.request is not None and wide.request != narrow.request:
        return False
    if wide.ports is not None and (narrow.ports is None or not narrow.ports <= wide.ports):
        return False
    if wide.network is not None or narrow.network is not None:
        # `*` allows only public addresses; a pattern of addresses may include others.
        if wide.network is None or narrow.network is None:
            return False
        return wide.network.version == narrow.network.version and (
            narrow.network.network_address in wide.network
            and narrow.network.prefixlen >= wide.network.prefixlen
        )
    if wide.name is None or narrow.name is None:
        # The machine itself has to be named.
        return wide.name is None and narrow.name != HOST_NAME
    if wide.subdomains:
        return narrow.name.endswith("." + wide.name) or (
            narrow.subdomains and narrow.name == wide.name
        )
    return not narrow.subdomains and narrow.name == wide.name
