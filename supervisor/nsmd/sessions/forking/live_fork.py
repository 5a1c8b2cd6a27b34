"""One request to fork a session, as the supervisor carries it out, and the fork server that it
asks.
"""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import cast

import trio

import sandbox
from nsm.wire.decode import DecodeError, decode
from nsm.wire.errors import ForkRefusedError, NsmError
from nsm.wire.tuples import NamedTuple
from nsmd.agent_link.frames import CompletionsFrame, ForkedFrame
from nsmd.agent_link.requests import NoAnswerError
from nsmd.fdstore import holder
from nsmd.host.child_processes import PACKAGES
from nsmd.jail.arguments import AGENT_PATH, agent_command, variables_of
from nsmd.jail.process import Jail
from nsmd.jail.project import ProjectCopy
from nsmd.jail.templates.launcher import TemplateLauncher
from nsmd.jail.templates.template import COPY_DESCRIPTORS
from nsmd.model.values import JailSpec
from nsmd.sessions.session import Session

_START = (
    "import os, sys; sys.path += os.read(0, 65536).decode().split(':'); "
    "from nsmd.sessions.forking.helper import main; main()"
)
"""The paths of the packages are a message, as sessions can read the command of their PID 1."""

_PATHS = f"{PACKAGES}:{os.path.dirname(os.path.dirname(str(sandbox.__file__)))}"


class Helpers:
    """Helpers that fork sessions, one for each request; a fork server forks them.

    Attributes:
        turn: held during a request. The limits of namespaces are lifted only then, and the
            namespaces of a fork count against the limits of all sessions that it is a fork of.

    Resources:
        A process and a socket from the first request on, until `close`.
    """

    def __init__(self) -> None:
        self.turn = trio.Lock()
        self._control: socket.socket | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Helpers server={self._server and self._server.pid}>"

    def ask(self) -> socket.socket:
        """Return a socket to a new helper; owned by the caller."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            try:
                ours.setblocking(False)
                if not self._send(its):
                    self.close()  # the fork server has ended, for example since it was unused
                    self._start()
                    self._send(its)
            except BaseException:
                ours.close()
                raise
        return ours

    def _send(self, its: socket.socket) -> bool:
        if self._control is None:
            return False
        try:
            socket.send_fds(self._control, [b"+"], [its.fileno()])
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def _start(self) -> None:
        control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with its:
                # First: else it reads nothing if this process is killed now.
                control.send(_PATHS.encode())
                self._server = subprocess.Popen(
                    # The name that agents of live forks show in their session.
                    [os.path.realpath(sys.executable), "-I", "-S", "-c", _START],
                    stdin=its.fileno(),
                    stdout=subprocess.DEVNULL,
                    cwd="/",
                    env={},
                    start_new_session=True,
                    umask=0o022,
                )
        except BaseException:
            control.close()
            raise
        self._control = control

    def close(self) -> None:
        """End the fork server; what it has forked goes on. May be repeated."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._server is not None:
            self._server.kill()  # SIGKILL: it may be stopped
            self._server.wait()
            self._server = None


TIMEOUT_S = 90.0
"""Time limit of a request; the helper has a shorter one (`helper.LIMIT_S`)."""

MESSAGE_BYTES = 64 * 1024

ENDED = "the helper that makes forks ended"

_HINT = "`nsm save` and `nsm restore` make a session of what can be pickled."


class _NotBegunError(Exception):
    """A helper has ended before it had anything to do with the original."""


class MadeForks(NamedTuple):
    """Answer of a helper about forks that it made.

    Attributes:
        forks: host process ids of their PID 1s.
        closed: descriptors and programs of the original that forks do not have, in words.
        copied_bytes: size of the files that each got.
        stood_s: seconds for which the original was stopped.
    """

    forks: tuple[int, ...]
    closed: tuple[str, ...] = ()
    copied_bytes: int = 0
    stood_s: float = 0.0


class LiveFork:
    """Forks of one session, made at once; the launcher of each of them."""

    def __init__(
        self, original: Session, launcher: TemplateLauncher, helpers: Helpers, count: int
    ) -> None:
        self.report: MadeForks | None = None
        self._helpers = helpers
        self._original, self._launcher = original, launcher
        self._count = count
        self._groups: list[int | None] = []
        self._over = trio.Event()
        self._failure: NsmError | None = None
        self._asked_id = ""
        self._is_undone = False
        self._jails: list[Jail] = []

    async def prepare(self, spec: JailSpec) -> None:
        """Nothing has to be ready."""

    async def launch(self, spec: JailSpec, group: int | None = None) -> Jail:
        """Wait for the other forks, and make all of them (`Launcher.launch`)."""
        number = len(self._groups)
        self._groups.append(group)
        if len(self._groups) == self._count:
            try:
                with trio.fail_after(TIMEOUT_S):
                    async with self._helpers.turn:
                        await self._make(spec)
            except NsmError as error:
                self._failure = error
            except (OSError, trio.TooSlowError) as error:
                self._failure = _refused(self._original, str(error) or "it took too long")
            finally:
                self._failure = self._failure or (
                    None if self._jails else _refused(self._original, "the call was cancelled")
                )
                self._over.set()
        else:
            await self._over.wait()
        if self._failure is not None:
            raise self._failure
        return self._jails[number]

    async def _make(self, spec: JailSpec) -> None:
        original = self._original
        plan = self._launcher.plan(spec)
        jail = original.jail
        if jail is None:
            raise original.ended_error()
        if plan.impossible or plan.policy is None:
            raise _refused(original, plan.impossible)
        if self._launcher.limits.undo:
            await self._until_frozen()
        common, policy, *variables = plan.request.split(b"\0")
        environment = spec.environment
        host_network = spec.network.mode == "full"
        limits = self._launcher.limits.of_interpreters(environment)
        named = (os.fsdecode(each).partition("=") for each in variables)
        order = {
            "agent": jail.pid,
            "template": jail.template_pid,
            "count": self._count,
            "common": json.loads(common),
            "policy": policy.decode(errors="surrogateescape"),
            "host_network": host_network,
            "variables": {
                **variables_of(environment.path),
                "PWD": "/workspace",
                **{name: value for name, _, value in named},
            },
            "command": agent_command(environment, limits, host_network=host_network),
            "agent_file": AGENT_PATH,
            "interpreter": environment.interpreter,
            "program": environment.program,
            # A fork of the fork server can be its agent, with the same standard library.
            "same_python": _is_own_python(environment.agent_python),
            "limits": limits,
        }
        with ExitStack() as owned, ExitStack() as own_ends:
            pairs: list[tuple[socket.socket, socket.socket]] = []
            for _ in range(self._count):
                ours, theirs = socket.socketpair()
                pairs.append((ours, theirs))
                owned.callback(theirs.close)
                ours.setblocking(False)
                own_ends.callback(ours.close)
            groups = [group for group in self._groups if group is not None]
            fds = [theirs.fileno() for _, theirs in pairs] + groups
            project = jail.project_copy
            if project is not None:
                fds.append(project.changed)
            report, fds = await self._request(order, fds)
            own_ends.pop_all()  # they belong to the jails, as do the descriptors
            for (ours, _), pid in zip(pairs, report.forks, strict=True):
                made = Jail(ours, fds.pop(0), pid)
                if project is not None:
                    made.project_copy = ProjectCopy(fds.pop(0), fds.pop(0))
                    made.project_copy.applied.update(project.applied)
                made.policy, made.template_pid = plan.policy, jail.template_pid
                self._jails.append(made)
        self.report = report

    async def _until_frozen(self) -> None:
        """Wait until the checkpoint of the last call is made, which is a fork, too.

        The interpreter answers one question after another, and so this one when it is made.
        """
        requests = self._original.requests
        question = {
            "type": "complete",
            "id": requests.new_id(),
            "interpreter": self._original.spec.environment.interpreter,
            "code": "",
            "cursor": 0,
        }
        with suppress(NoAnswerError):
            await requests.ask("complete", question, (CompletionsFrame,), TIMEOUT_S)

    async def _request(
        self, order: Mapping[str, object], fds: Sequence[int]
    ) -> tuple[MadeForks, list[int]]:
        """Have a helper make the forks; another one if that ends before it has begun."""
        try:
            return await self._ask(order, fds)
        except _NotBegunError:
            try:
                return await self._ask(order, fds)
            except _NotBegunError:
                raise _refused(self._original, ENDED) from None

    async def _ask(
        self, order: Mapping[str, object], fds: Sequence[int]
    ) -> tuple[MadeForks, list[int]]:
        with self._order(order, fds) as channel:
            try:
                return await self._converse(channel)
            except BaseException:
                with trio.CancelScope(shield=True):
                    # At the end of its socket the helper gives up, and the original goes on.
                    channel.shutdown(socket.SHUT_WR)
                    await self._until_ended(channel)
                    self._tell_failed()
                    # A helper that was killed has left limits lifted: another restores them.
                    with self._order({key: order[key] for key in ("agent", "template")}) as another:
                        await self._until_ended(another)
                raise

    def _order(self, order: Mapping[str, object], fds: Sequence[int] = ()) -> socket.socket:
        """Give a new helper its order; return the socket to it, owned by the caller.

        A helper that is being killed can still be asked, but ends before it reads the order.
        """
        message = json.dumps(order).encode()
        for tries_left in (2, 1, 0):
            channel = self._helpers.ask()
            try:
                socket.send_fds(channel, [message], fds)
            except OSError as error:
                channel.close()
                if tries_left == 0 or not isinstance(error, ConnectionError):
                    raise
            else:
                return channel
        raise AssertionError("the last try returns or raises")

    async def _until_ended(self, channel: socket.socket) -> None:
        while True:
            told, fds = await self._hear(channel)
            holder.close(fds)
            if told.get("failed") == ENDED:
                return

    async def _converse(self, channel: socket.socket) -> tuple[MadeForks, list[int]]:
        """Hear that the original is traced, have its agent ask for the fork, and hear the rest."""
        told, _ = await self._hear(channel)
        if told.get("failed") == ENDED:
            raise _NotBegunError
        if not told.get("attached"):
            raise _refused(self._original, str(told.get("failed", "its helper said nothing")))
        try:
            asked = {"type": "fork", "id": self._original.requests.new_id()}
            question = self._original.requests.begin("fork", asked, (ForkedFrame,))
            self._asked_id = asked["id"]
        except NsmError as error:
            raise _refused(self._original, error.message) from error
        outcome: list[tuple[dict[str, object], list[int]]] = []
        answers: list[str] = []
        async with trio.open_nursery() as nursery:

            async def hear() -> None:
                outcome.append(await self._hear(channel))
                nursery.cancel_scope.cancel()

            async def answer() -> None:
                try:
                    frame = await question.wait(TIMEOUT_S)
                except NoAnswerError:
                    return
                except NsmError as error:
                    answers.append(error.message)
                    nursery.cancel_scope.cancel()
                    return
                if isinstance(frame, ForkedFrame) and frame.error:
                    answers.append(f"its interpreter does not fork: {frame.error}")
                    nursery.cancel_scope.cancel()
                elif self._original.spec.environment.interpreter == "bash":
                    with suppress(OSError):  # it has ended, which is heard
                        channel.send(b"fork")

            nursery.start_soon(hear)
            nursery.start_soon(answer)
        if not outcome:
            raise _refused(self._original, answers[0] if answers else "it was given up")
        told, fds = outcome[0]
        why = str(told.get("failed", ENDED))
        with suppress(DecodeError):
            report = decode(MadeForks, told)
            if len(report.forks) == self._count and len(fds) == self._count * self._descriptors:
                return report, fds
        holder.close(fds)
        raise _refused(self._original, why)

    @property
    def _descriptors(self) -> int:
        """Number of descriptors that a helper sends of each fork."""
        jail = self._original.jail
        return 1 if jail is None or jail.project_copy is None else 1 + COPY_DESCRIPTORS

    def _tell_failed(self) -> None:
        """Let the original go on as before: else it keeps jobs and input from forks that it lacks.

        Where the helper was killed, nobody knows whether something is left of a fork.
        """
        requests = self._original.requests
        with suppress(NsmError):  # it has ended, or its agent is older
            requests.check("fork.failed")
            if self._asked_id and self._is_undone:
                requests.send({"type": "fork-failed", "id": self._asked_id})

    async def _hear(self, channel: socket.socket) -> tuple[dict[str, object], list[int]]:
        """The next message of a helper; one that says that it failed if it has ended."""
        while True:
            await trio.lowlevel.wait_readable(channel)
            try:
                message, fds, _ = holder.receive(channel, size=MESSAGE_BYTES)
            except BlockingIOError:
                continue
            except ConnectionError:
                message, fds = b"", []
            with suppress(ValueError):
                told = json.loads(message)
                if isinstance(told, dict):
                    self._is_undone = self._is_undone or "failed" in told
                    return cast("dict[str, object]", told), fds
            return {"failed": ENDED}, fds


def _is_own_python(path: str) -> bool:
    return os.path.realpath(path) == os.path.realpath(sys.executable)


def _refused(original: Session, why: str) -> ForkRefusedError:
    label = original.name or original.id
    return ForkRefusedError(f"Session {label!r} cannot be forked: {why}.", hint=_HINT)


def check_forkable(original: Session) -> None:
    """Refuse a session that cannot be forked, as far as the supervisor knows."""
    environment, jail = original.spec.environment, original.jail
    if environment.image is not None:
        raise _refused(original, "it runs in a container image")
    if environment.interpreter not in {"python", "bash"}:
        raise _refused(
            original, f"only Python and Bash sessions can, and this is {environment.interpreter}"
        )
    running = original.runs.running
    if running is not None and running.request.undo:
        raise ForkRefusedError(
            f"Session {original.name or original.id!r} cannot be forked during an undo.",
            hint="Fork it when that has ended.",
        )
    if running is not None or original.runs.waiting:
        raise ForkRefusedError(
            f"Session {original.name or original.id!r} cannot be forked while code runs in it.",
            hint="Wait for its result, or `nsm interrupt` it.",
        )
    if platform.machine() != "x86_64":
        raise _refused(
            original, f"nsm can do that on x86-64 only, and this is {platform.machine()}"
        )
    if environment.artifact is not None:
        raise _refused(original, "it runs in an artifact of Nix, whose jail nsm does not make")
    if environment.interpreter == "python" and environment.program != environment.agent_python:
        raise _refused(original, "its Python is not the one that templates run")
    if jail is None or not jail.template_pid or jail.starter_pid:
        raise _refused(original, "it has a jail of its own, and is not the fork of a template")
