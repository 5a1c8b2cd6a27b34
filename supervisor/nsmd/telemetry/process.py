"""Facts of the system about the supervisor's own process and its templates."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable

from nsmd.host.process_stats import share_of
from nsmd.host.processes import stat_fields
from nsmd.telemetry import families as f
from nsmd.telemetry.families import Readings


def read(templates: Iterable[int] = ()) -> Readings:
    """Read proc_pid_stat(5), and getrusage(2) for more precise values. Call it in a thread: with
    ten thousand descriptors it takes milliseconds.

    Args:
        templates: process ids of templates.
    """
    _, fields = stat_fields("self")
    usage = resource.getrusage(resource.RUSAGE_SELF)
    since_boot_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    started_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot_s
    return {
        f.TEMPLATE_MEMORY: {(): sum(share_of(pid) or 0 for pid in templates)},
        f.CPU: {(): usage.ru_utime + usage.ru_stime},
        f.RESIDENT: {(): int(fields[21]) * os.sysconf("SC_PAGE_SIZE")},
        f.VIRTUAL: {(): int(fields[20])},
        f.STARTED: {(): started_at},
        f.DESCRIPTORS: {(): len(os.listdir("/proc/self/fd")) - 1},  # without that of the listing
        f.DESCRIPTORS_LIMIT: {(): resource.getrlimit(resource.RLIMIT_NOFILE)[0]},
    }
