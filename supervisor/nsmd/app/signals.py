"""Signals: how a person, a shell or a service manager asks for the end, or for a reload of
settings.
"""

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
    """Ignore the signal: ending takes at most `END_DEADLINE_S`."""


async def heed_signals(
    store: DescriptorStore,
    ending: Shutdown,
    draining: Draining,
    configuration: Reconfiguration,
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Handle signals.

    SIGINT ends everything at once. SIGTERM lets running executions finish; a second one does not.
    SIGHUP reloads the configuration, but ends a supervisor whose terminal was closed.
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
                if timeout_s is None:
                    timeout_s = configuration.settings.drain.timeout_seconds
                draining.begin(signal.Signals(number).name, timeout_s=timeout_s, then=then)
                timeout_s = 0.0
