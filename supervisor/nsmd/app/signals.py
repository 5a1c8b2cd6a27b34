"""Signals: how a person, a shell or a service manager asks for an end, or for other settings."""

from __future__ import annotations

import logging
import os
import signal

import trio

from nsmd.config.reload import Reconfiguration
from nsmd.fdstore.store import DescriptorStore
from nsmd.model.shutdown import Shutdown
from nsmd.restart.drain import Draining, after_sigterm

log = logging.getLogger(__name__)

STDERR = 2

HEEDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def _already_ending(_number: int, _frame: object) -> None:
    """Ignore the signal: the end takes `END_DEADLINE_S` at most."""


async def heed_signals(
    store: DescriptorStore,
    ending: Shutdown,
    draining: Draining,
    configuration: Reconfiguration,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """SIGINT ends everything at once; SIGTERM lets what runs finish, a second one no longer; SIGHUP
    has the configuration read again, and ends a supervisor whose terminal was closed."""
    then = after_sigterm(store)
    timeout_s: float | None = None
    on_terminal = os.isatty(STDERR)
    # The receiver puts this back when it is closed. At a second Ctrl-C, what is being ended would
    # else be left as after a crash, with a keeper that holds it. Programs that are started do not
    # inherit a function, as they would that a signal is ignored.
    for heeded in HEEDED:
        signal.signal(heeded, _already_ending)
    with trio.open_signal_receiver(*HEEDED) as signals:
        task_status.started()  # before anybody is told that this supervisor is there
        async for number in signals:
            if number == signal.SIGHUP and not (on_terminal and not os.isatty(STDERR)):
                await configuration.reload("SIGHUP")
                continue
            log.info("ending on %s", signal.Signals(number).name)
            if number == signal.SIGINT:
                ending.ask("end")
            else:
                if timeout_s is None:
                    timeout_s = configuration.settings.drain.timeout_seconds
                draining.begin(signal.Signals(number).name, timeout_s=timeout_s, then=then)
                timeout_s = 0.0
