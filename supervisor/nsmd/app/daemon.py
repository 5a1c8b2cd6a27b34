"""The life of the supervisor, from its first task to its last.

Lifetimes are nested, and end from the inside out: first the connections, so that nobody asks for
anything more; then the services with the pool; then the sessions, which all kill their own jails at
once; then the templates.

The service manager hears that it is alive, and its status line: that changes with events, at most
every few seconds; without events, nothing is sent. The watchdog's pings come from the event loop,
so that systemd notices a hanging loop. It then ends this process and starts another, which takes
over the sessions.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib import import_module
from typing import NoReturn

import trio

from nsm import paths
from nsm._version import program_version
from nsmd.app.instance import SocketGuard
from nsmd.app.service_manager import notify
from nsmd.app.services import FrontEnds, open_services
from nsmd.app.startup import Startup
from nsmd.audit import RECORDED, Recorder, open_journal
from nsmd.config.reload import Reconfiguration
from nsmd.control.call import Services
from nsmd.fdstore.store import DescriptorStore
from nsmd.host.listeners import LOCK
from nsmd.http.scraping import serve_metrics
from nsmd.jail.limits import open_enforcer
from nsmd.jail.templates import open_launcher, read_programs
from nsmd.model.events import Events, SupervisorEvent
from nsmd.model.lifecycle import How, Shutdown
from nsmd.model.limits import session_limits
from nsmd.model.settings import Settings
from nsmd.restart.drain import Draining, after_sigterm

log = logging.getLogger(__name__)

NEEDED_LATER = ("nsmd.denials.explaining", "nsmd.sessions.changes")
"""Modules that sessions need at some time, and that are not imported at the start."""

LOAD_AFTER_S = 10.0
"""Time from the start to their import: longer than most programs that start a supervisor use it."""

END_DEADLINE_S = 10.0
"""Time for all jails to end; killing a thousand takes half a second."""


STDERR = 2

HEEDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class CrashWatch:
    """Watch that ends the process at once if one of its tasks fails, unless all is to end anyway.

    Otherwise trio would cancel all other tasks, and those of sessions, templates, boxes and ports
    would end what they own, instead of leaving it to the next supervisor.
    """

    def __init__(self, ending: Shutdown, crash: Callable[[BaseException], NoReturn]) -> None:
        self._ending, self._crash = ending, crash
        self._tasks: set[trio.lowlevel.Task] = set()
        self._main: trio.lowlevel.Task | None = None
        self._over = False

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Watch one nursery of the supervisor's main task until `end`.

        When a nursery is cancelled, trio calls `abort` before it runs any of the tasks in it.
        """
        task = trio.lowlevel.current_task()
        nursery = task.parent_nursery
        assert nursery is not None, "never the first task"
        self._main = nursery.parent_task
        task_status.started()

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._tasks.discard(task)
            if not self._over and self._ending.how != "end":
                self._crash(self._cause())
            return trio.lowlevel.Abort.SUCCEEDED

        if not self._over:
            self._tasks.add(task)
            await trio.lowlevel.wait_task_rescheduled(abort)

    def end(self) -> None:
        """Stop watching: what is cancelled from now on is to end."""
        self._over = True
        for task in self._tasks:
            trio.lowlevel.reschedule(task)
        self._tasks.clear()

    def _cause(self) -> BaseException:
        """Return what has failed. trio tells it only afterwards, with all that fails meanwhile."""
        nurseries = self._main.child_nurseries if self._main is not None else ()
        found = [each for one in nurseries for each in getattr(one, "_pending_excs", ())]
        return BaseExceptionGroup("tasks failed", found) if found else RuntimeError("cancelled")


async def serve(start: Startup) -> None:
    """Run the supervisor until SIGTERM, SIGINT or a `shutdown` operation."""
    settings, ending, events = start.settings, Shutdown(), Events()
    crash_watch = CrashWatch(ending, lambda error: start.leave.crash(start.crashed(error)))
    async with (
        # First of all: processes that are started stay in the group where the supervisor was then.
        open_enforcer(
            session_limits(settings),
            os.environ,
            store=start.store,
            kept=start.entries.kept,
            again=start.again,
        ) as enforcer,
        open_journal(
            _audit_path(), max_mb=settings.audit.max_mb, keep=settings.audit.keep
        ) as journal,
        open_launcher(
            start.jails,
            os.path.join(paths.runtime_dir(), "wrapper-home"),
            enforcer.enforcement,
            templates=settings.defaults.templates,
            entries=start.entries,
        ) as launcher,
        trio.open_nursery() as sessions,
    ):
        await sessions.start(crash_watch.run)
        recorder = Recorder(journal, settings.audit)
        events.subscribe(recorder, RECORDED)
        async with open_services(
            start, enforcer, launcher, sessions, events=events, recorder=recorder, ending=ending
        ) as frontends:
            how = await _serve_clients(start, frontends, recorder, crash_watch)
        if how != "end":
            await journal.close()
            start.leave(how)
        frontends.port.forget()
        frontends.services.run_service.session_manager.close()
        sessions.cancel_scope.deadline = trio.current_time() + END_DEADLINE_S
    log.info("ended")


def _audit_path() -> str:
    """Path of the audit's file; makes its directory if it can."""
    try:
        paths.ensure_private_dir(paths.state_dir())
    except OSError as error:
        log.warning("no state is kept: %s", error)
    return paths.audit_path()


async def _serve_clients(
    start: Startup, frontends: FrontEnds, recorder: Recorder, crash_watch: CrashWatch
) -> How:
    """Serve clients until the supervisor is told how to end."""
    services = frontends.services
    run_service, ending, draining = services.run_service, services.ending, services.draining
    status = ServiceStatus(
        os.environ,
        lambda: (
            len(run_service.live_sessions()),
            len(run_service.unfinished()),
            services.clients(),
        ),
        draining.remaining_s,
    )
    guard = SocketGuard(
        start.listener,
        start.leave.lock,
        os.path.join(paths.runtime_dir(), LOCK),
        ours=start.leave.own is not None,
        directory_changed=start.store.ensure_reachable,
    )
    async with trio.open_nursery() as connections:
        await connections.start(crash_watch.run)
        await connections.start(
            partial(heed_signals, reattached=run_service.session_manager.wait_reattached),
            start.store,
            ending,
            draining,
            services.configuration,
        )
        # Before anything that clients do: they may have waited for this.
        recorder.say("supervisor_started", {"pid": os.getpid(), "version": program_version()})
        connections.start_soon(guard.serve, frontends.handle, connections)
        connections.start_soon(guard.watch)
        await connections.start(services.secrets.serve, partial(_owners_of_secrets, services))
        await connections.start(services.boxes.serve, frontends.of_box)
        await connections.start(services.ports.serve, run_service.live_sessions)
        await connections.start(frontends.http.serve)
        start.announce()
        connections.start_soon(status.run, services.events)
        connections.start_soon(frontends.endpoint.run)
        connections.start_soon(load_the_rest)
        connections.start_soon(
            serve_metrics,
            os.path.join(paths.runtime_dir(), "metrics.sock"),
            start.settings.metrics.port,
            services.telemetry.text,
        )
        log.info("listening on %s (pid %d)", services.socket_path, os.getpid())
        how = await ending.wait()
        status.ends(how)
        await services.bridge.finish(_patience_s(how, services.configuration.settings, draining))
        how = ending.how or how  # somebody may have asked for the end meanwhile
        if how != "end":
            start.leave.hold_place()
            run_service.session_manager.leave()
            services.boxes.leave()
            services.secrets.leave()
            services.ports.leave()
        recorder.say("supervisor_ended", {"pid": os.getpid(), "how": how})
        crash_watch.end()
        connections.cancel_scope.cancel()
    return how


def _owners_of_secrets(services: Services) -> set[str]:
    """Ids of the live sessions and boxes."""
    sessions = {session.id for session in services.run_service.live_sessions()}
    return sessions | {row["id"] for row in services.boxes.rows()}


async def load_the_rest() -> None:
    """Read what the first calls may not need, before an upgrade replaces it.

    A module of another version than the others cannot be imported, and would end the session whose
    result is to be explained. Not so the MCP endpoint, which is large: the first client that
    attaches after an upgrade is refused until `nsm reload`.
    """
    await trio.sleep(LOAD_AFTER_S)
    try:
        for module in NEEDED_LATER:
            await trio.to_thread.run_sync(import_module, module, abandon_on_cancel=True)
        await trio.to_thread.run_sync(read_programs, abandon_on_cancel=True)
    except Exception:
        log.exception("nsm was replaced or removed too early; `nsm reload` puts that right")


def _patience_s(how: How, settings: Settings, draining: Draining) -> float:
    """Time for bridge programs to end. Unlike sessions, they cannot continue without
    this process.
    """
    waited = draining.drain is not None and not draining.drain.active
    return 0.0 if how == "end" or waited else settings.drain.timeout_seconds


def _already_ending(_number: int, _frame: object) -> None:
    """Ignore the signal: ending takes at most `END_DEADLINE_S`."""


async def heed_signals(
    store: DescriptorStore,
    ending: Shutdown,
    draining: Draining,
    configuration: Reconfiguration,
    *,
    reattached: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    task_status: trio.TaskStatus[None],
) -> None:
    """Handle signals.

    SIGINT ends everything at once. SIGTERM lets running executions finish; a second one does not.
    SIGHUP reloads the configuration, but ends a supervisor whose terminal was closed.

    Args:
        reattached: waits until agents of an earlier supervisor's sessions have said what they run.
    """
    then = after_sigterm(store)
    timeout_s: float | None = None
    on_terminal = os.isatty(STDERR)
    # The receiver restores this handler when it is closed. Without it, a second Ctrl-C would leave
    # everything as after a crash, with a holder that keeps it. Started programs do not inherit a
    # handler, but they would inherit that a signal is ignored.
    for heeded in HEEDED:
        signal.signal(heeded, _already_ending)
    with trio.open_signal_receiver(*HEEDED) as signals:
        task_status.started()  # before anybody knows that this supervisor is there
        async for number in signals:
            if number == signal.SIGHUP and not (on_terminal and not os.isatty(STDERR)):
                await configuration.reload("SIGHUP")
                continue
            log.info("ending on %s", signal.Signals(number).name)
            if number == signal.SIGINT:
                ending.ask("end")
            else:
                await reattached()
                if timeout_s is None:
                    timeout_s = configuration.settings.drain.timeout_seconds
                draining.begin(signal.Signals(number).name, timeout_s=timeout_s, then=then)
                timeout_s = 0.0


STATUS_PERIOD_S = 5.0
"""Time between two status lines."""

MARGIN_S = 15.0
"""Time that ending takes beyond the time to wait."""

RELOAD_S = 90.0
"""Time until the program that this process becomes must run its loop: as long as a unit may take to
start (`DefaultTimeoutStartSec=`). With the watchdog's own time, systemd would end it on a slow
machine.
"""

_LONGEST_S = 86400.0


class ServiceStatus:
    """Reports to the service manager.

    Args:
        counts: returns the numbers of sessions, running executions and clients.
        remaining_s: returns the seconds until a drain's deadline; None without a drain or deadline.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        counts: Callable[[], tuple[int, int, int]],
        remaining_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._environment = environment
        self._counts = counts
        self._remaining_s = remaining_s
        self._wanted = bool(environment.get("NOTIFY_SOCKET"))
        self._changed = trio.Event()
        self._draining = ""

    def __repr__(self) -> str:
        return f"<ServiceStatus {self.text() if self._wanted else 'for nobody'}>"

    def text(self) -> str:
        """Status line, such as ``3 sessions, 1 execution under way, 2 clients``."""
        sessions, running, clients = self._counts()
        line = ", ".join(
            [
                _many(sessions, "session"),
                f"{_many(running, 'execution')} under way",
                _many(clients, "client"),
            ]
        )
        return f"{self._draining}{line}"

    async def run(self, events: Events) -> None:
        """Report changes, and that the loop turns. Returns at once if the service manager wants no
        reports.
        """
        period_s = watchdog_period_s(self._environment)
        async with trio.open_nursery() as nursery:
            if period_s is not None:
                nursery.start_soon(self._ping, period_s)
            if self._wanted:
                nursery.start_soon(self._tell_changes, events)

    def ends(self, how: How) -> None:
        """Report that the supervisor now ends, or becomes another program."""
        if how == "reload":
            now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            self._say(f"RELOADING=1\nMONOTONIC_USEC={now_us}\nSTATUS=Reloading")
            if (period_s := watchdog_period_s(self._environment)) is not None:
                self._say(f"WATCHDOG_USEC={math.ceil(max(2 * period_s, RELOAD_S) * 1e6)}")
        else:
            self._say("STOPPING=1\nSTATUS=Ending")

    async def _ping(self, period_s: float) -> None:
        # The program before a reload may have asked for more.
        self._say(f"WATCHDOG_USEC={math.ceil(2 * period_s * 1e6)}")
        while True:
            self._say("WATCHDOG=1")
            await trio.sleep(period_s)

    async def _tell_changes(self, events: Events) -> None:
        unsubscribe = events.subscribe(self._happened)
        told = ""
        try:
            while True:
                self._changed = changed = trio.Event()
                if (text := self.text()) != told:
                    self._say(f"STATUS={text}")
                    told = text
                await changed.wait()
                await trio.sleep(STATUS_PERIOD_S)
        finally:
            unsubscribe()

    def _happened(self, event: SupervisorEvent) -> None:
        self._changed.set()
        if event.kind == "draining":
            state, then = event.facts.get("state"), event.facts.get("then")
            self._draining = "" if state == "cancelled" else "Draining: "
            if state == "begun" and then != "stay":
                # The unit's own limit (`TimeoutStopSec=`) knows nothing of the drain's.
                left_s = min(self._remaining_s() or 0.0, _LONGEST_S) + MARGIN_S
                self._say(f"EXTEND_TIMEOUT_USEC={math.ceil(left_s * 1e6)}\nSTATUS={self.text()}")

    def _say(self, message: str) -> None:
        if self._wanted:
            notify(self._environment, message)


def watchdog_period_s(environment: Mapping[str, str]) -> float | None:
    """Seconds between two reports that we are alive: half of the time after which systemd would end
    us (sd_watchdog_enabled(3)). None if it does not watch, or watches another process.
    """
    watched = environment.get("WATCHDOG_USEC", "")
    pid = environment.get("WATCHDOG_PID", "")
    if not watched.isdecimal() or int(watched) == 0 or pid not in ("", str(os.getpid())):
        return None
    return int(watched) / 2e6


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
