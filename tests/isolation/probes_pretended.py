"""Probes of what takes privileges that no throw-away jail can have, or that no test should use.

Their weakened jails have a filter by which these calls succeed and do nothing: the probe sees
success. Nothing but the privileges is needed to hold them; the filter does so once more.
"""

from __future__ import annotations

import json
import platform

from isolation.probe import NUMBERS, Group, Probe
from isolation.weaken import Weakness, pretending

_OTHERS = {
    "x86_64": {"sched_setscheduler": 144, "mknodat": 259, "ioprio_set": 251, "setpriority": 141},
    "aarch64": {"sched_setscheduler": 119, "mknodat": 33, "ioprio_set": 30, "setpriority": 140},
}.get(platform.machine(), {})
"""Calls that the filter lets through, and the kernel's rules hold."""

_X32_GETPID = 0x40000000 | 39
_NEWER = 511

_PRETENDED = (
    *("syslog", "clock_settime", "settimeofday", "init_module", "finit_module", "delete_module"),
    *("kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff", "acct", "vhangup"),
)

_PRETENDING = Weakness(
    system_calls=pretending(
        *(NUMBERS[name] for name in _PRETENDED if name in NUMBERS),
        *_OTHERS.values(),
        _X32_GETPID,
        _NEWER,
    )
)

_TRY = f"""
SYS.update(json.loads({json.dumps(_OTHERS)!r}))
def done(ways):
    return [name for name, arguments in ways.items() if attempt(call, name, *arguments) is not None]
"""


def _pretended(
    name: str, source: str, code: str, group: Group = "kernel", *, filtered: bool = False
) -> Probe:
    return Probe(
        name=name,
        group=group,
        source=source,
        language="c",
        code=_TRY + code,
        weakness=_PRETENDING,
        filtered=filtered,
    )


PROBES = (
    _pretended(
        "kernel-log",
        "syslog(2): where kernel.dmesg_restrict is 0, everyone may read the machine's log",
        """
READ_ALL, SIZE = 3, 10
verdict(done({"syslog": (SIZE, None, 0)}))
""",
        filtered=True,
    ),
    _pretended(
        "set-clocks",
        "capabilities(7): CAP_SYS_TIME",
        """
now = struct.pack("qq", 0, 0)
verdict(done({"clock_settime": (0, now), "settimeofday": (now, None)}))
""",
    ),
    _pretended(
        "kernel-modules",
        "capabilities(7): CAP_SYS_MODULE",
        """
verdict(done({
    "init_module": (b"", 0, b""), "finit_module": (0, b"", 0), "delete_module": (b"probe", 0)}))
""",
    ),
    _pretended(
        "another-kernel",
        "kexec_load(2)",
        """
verdict(done({"kexec_load": (0, 0, None, 0), "kexec_file_load": (-1, -1, 0, None, 4)}))
""",
    ),
    _pretended(
        "machine-administration",
        "capabilities(7): CAP_SYS_BOOT, CAP_SYS_ADMIN, CAP_SYS_PACCT, CAP_SYS_TTY_CONFIG",
        """
CAD_OFF = 0  # the harmless one of reboot's commands
verdict(done({
    "reboot": (0xFEE1DEAD, 672274793, CAD_OFF, None), "swapon": (b"/workspace", 0),
    "swapoff": (b"/workspace",), "acct": (None,), "vhangup": ()}))
""",
    ),
    _pretended(
        "real-time-priority",
        "sched(7): a thread with one comes before everything else of the machine",
        """
FIFO = 1
verdict(done({"sched_setscheduler": (0, FIFO, struct.pack("i", 1))}))
""",
        "resources",
    ),
    _pretended(
        "higher-priority",
        "setpriority(2): a lower nice value than that of the machine's other programs",
        """
PROCESS = 0
verdict(done({"setpriority": (PROCESS, 0, -5)}))
""",
        "resources",
    ),
    _pretended(
        "first-at-the-disk",
        "ioprio_set(2): the real-time class starves everybody else's reads",
        """
PROCESS, REAL_TIME = 1, 1 << 13
verdict(done({"ioprio_set": (PROCESS, 0, REAL_TIME)}))
""",
        "resources",
    ),
    _pretended(
        "device-nodes",
        "mknod(2): a way to the machine's memory and disks for whoever may make it",
        """
made = []
for name, kind, device in (("memory", stat.S_IFCHR, (1, 1)), ("disk", stat.S_IFBLK, (8, 0))):
    path = b"/tmp/" + name.encode()
    if attempt(call, "mknodat", -100, path, kind | 0o600, os.makedev(*device)) is not None:
        made.append(name)
        attempt(os.unlink, path)
verdict(made)
""",
        "devices",
    ),
    _pretended(
        "x32-entry",
        "seccomp(2), caveats: x32's numbers have bit 30 set, so that lists of numbers miss them",
        f"""
if os.uname().machine == "x86_64":
    verdict(attempt(call, {_X32_GETPID}) is not None and "answered")
else:
    not_here("x32")
""",
    ),
    _pretended(
        "system-calls-of-tomorrow",
        "decisions/0009: calls that nobody has looked at are not there",
        f"""
told = [n for n in range(472, {_NEWER} + 1) if attempt(call, n, -1, -1, -1, -1) is not None]
verdict(told)
""",
    ),
)
