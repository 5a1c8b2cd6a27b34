"""Probes of the filter of system calls, and of what nothing but the filter keeps from code."""

from __future__ import annotations

import json
from functools import partial

from isolation.probe import NUMBERS, Probe
from isolation.stage import Stage
from isolation.weaken import (
    NO_FILTER,
    UNFILTERED,
    UNFILTERED_FORK,
    Arguments,
    Weakness,
    both,
    without,
    without_mounts,
)
from nsm.jail.seccomp import REFUSALS

_REFUSED = [
    (name, NUMBERS[name], refusal.error)
    for refusal in REFUSALS
    for name in refusal.calls
    if name in NUMBERS
]


def _shows_keys(words: Arguments, _: Stage) -> Arguments:
    place = words.index("/proc/keys")
    return [*words[: place - 2], *words[place + 1 :]]


_of_kernel = partial(Probe, group="kernel")

PROBES = (
    _of_kernel(
        name="system-calls",
        source="decisions/0009: every call of the list of refusals",
        code=f"""
calls = json.loads({json.dumps(_REFUSED)!r})
def refusal(number):
    "Of arguments that make no sense, in a process that has nothing to lose."
    reader, writer = os.pipe()
    if os.fork() == 0:
        result = libc.syscall(number, *[ctypes.c_long(-1)] * 6)
        os.write(writer, bytes([0 if result >= 0 else ctypes.get_errno()]))
        os._exit(0)
    os.wait()
    return os.read(reader, 1)[0]
verdict([name for name, number, error in calls if refusal(number) != error])
""",
        weakness=UNFILTERED,
        fork_weakness=UNFILTERED_FORK,
        filtered=True,
    ),
    Probe(
        name="limits-of-the-agent",
        group="agent",
        source="prlimit(2): whoever has the same user may set them, dumpable or not",
        code="""
import resource
class Limits(ctypes.Structure):
    _fields_ = [("soft", ctypes.c_ulong), ("hard", ctypes.c_ulong)]
# Core files, which the agent has no use for: the attack would be on descriptors.
done = libc.prlimit(1, resource.RLIMIT_CORE, ctypes.byref(Limits(0, 0)), None) == 0
verdict(done and "set a limit of PID 1")
""",
        weakness=UNFILTERED,
        fork_weakness=UNFILTERED_FORK,
        filtered=True,
    ),
    _of_kernel(
        name="host-keys",
        source="keyrings(7): /proc/keys names them whatever the namespace",
        needs="key",
        code=f"""
REQUEST_KEY = {NUMBERS.get("request_key")}
def names():
    with open("/proc/keys") as file:
        return file.read()
named = STAGE["key"] in (attempt(names) or "") and "named"
found = libc.syscall(REQUEST_KEY, b"user", STAGE["key"].encode(), None, 0) >= 0 and "found"
verdict([word for word in (named, found) if word])
""",
        weakness=Weakness(arguments=both(without("--seccomp"), _shows_keys)),
        fork_weakness=Weakness(template=NO_FILTER + without_mounts("/proc/keys")),
        filtered=True,
    ),
)
