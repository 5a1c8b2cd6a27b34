"""Probes of limits, and of devices.

All are bounded: they stop where it is clear that nothing holds them.
"""

from __future__ import annotations

from functools import partial

from isolation.probe import Probe
from isolation.stage import Stage
from isolation.weaken import MOUNTS_AS_THEY_COME, Weakness, with_more, with_mount


def _unlimited(source: bytes) -> bytes:
    """The agent, with no limits for interpreters."""
    return (
        b"space = {'__name__': 'agent', '__file__': __file__}\n"
        b"exec(compile(%r, __file__, 'exec'), space)\n"
        b"space['set_limits'] = lambda *_: None\n"
        b"space['limits_for_bash'] = lambda _: []\n"
        b"if __name__ == '__main__':\n    import sys\n    space['main'](sys.argv[1:])\n"
        b"for name in ('prepare', 'serve', 'Limits', 'PythonWorker'):\n"
        b"    globals()[name] = space[name]\n"
    ) % source


_UNLIMITED = Weakness(agent=_unlimited, template='space["limit_resources"] = lambda *_: None')


def _limited(name: str, source: str, code: str) -> Probe:
    return Probe(
        name=name, group="resources", source=source, language="c", code=code, weakness=_UNLIMITED
    )


def _symbols(stage: Stage) -> str:
    return f"{stage.directory}/symbols"


def _device_directory(stage: Stage) -> list[str]:
    return ["--dev-bind", stage.directory, stage.directory]


_of_devices = partial(Probe, group="devices")

PROBES = (
    _limited(
        "private-memory",
        "getrlimit(2), RLIMIT_DATA",
        """
# Promised and not touched: what is not limited gets it at once.
READ_WRITE, PRIVATE_ANONYMOUS, NORESERVE, SIZE = 3, 0x22, 0x4000, 64 << 30
libc.mmap.restype = ctypes.c_void_p
place = libc.mmap(None, ctypes.c_size_t(SIZE), READ_WRITE, PRIVATE_ANONYMOUS | NORESERVE, -1, 0)
if place != ctypes.c_void_p(-1).value:
    libc.munmap(ctypes.c_void_p(place), ctypes.c_size_t(SIZE))
    verdict("64 GiB")
else:
    verdict(None)
""",
    ),
    _limited(
        "processes",
        "NPROC is counted in the user namespace",
        """
import threading
# Threads count as processes, and are made in less time.
ready, held = threading.Event(), []
before = threading.stack_size(64 << 10)
try:
    while len(held) < 500:
        thread = threading.Thread(target=ready.wait, daemon=True)
        thread.start()
        held.append(thread)
except RuntimeError:
    pass
ready.set()
for thread in held:
    thread.join()
threading.stack_size(before)
verdict(len(held) == 500 and "500 of them")
""",
    ),
    _limited(
        "open-files",
        "getrlimit(2), RLIMIT_NOFILE: each pins memory of the kernel that nothing else counts",
        """
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
try:
    while len(held) < 3000:
        held.append(os.dup(0))
except OSError:
    pass
for fd in held:
    os.close(fd)
verdict(len(held) == 3000 and "3,000 of them")
""",
    ),
    _limited(
        "locked-memory",
        "mlock(2): memory that the machine cannot swap out",
        """
SIZE = 1 << 20
memory = ctypes.create_string_buffer(SIZE)
locked = libc.mlock(memory, ctypes.c_size_t(SIZE)) == 0
libc.munlock(memory, ctypes.c_size_t(SIZE))
verdict(locked and "1 MiB")
""",
    ),
    _limited(
        "pending-signals",
        "timer_create(2): each timer takes one of the signals that its user may have pending",
        """
def timers():
    held = 0
    while held < 4000:
        timer = ctypes.c_void_p()
        if libc.timer_create(1, None, ctypes.byref(timer)) < 0:
            raise OSError(ctypes.get_errno(), "no more")
        held += 1
verdict(child(timers) and "4,000 timers")
""",
    ),
    _limited(
        "raised-limits",
        "getrlimit(2): hard limits are for ever, or they are none",
        """
import resource
def raised(kind):
    soft, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY:
        return True
    try:
        resource.setrlimit(kind, (soft, hard + 1))
    except ValueError as error:  # its word for a refusal
        raise OSError(errno.EPERM, "refused") from error
    return True
kinds = {"data": resource.RLIMIT_DATA, "processes": resource.RLIMIT_NPROC,
         "files": resource.RLIMIT_NOFILE, "core": resource.RLIMIT_CORE}
verdict([name for name, kind in kinds.items() if attempt(raised, kind)])
""",
    ),
    _of_devices(
        name="memory-of-the-kernel",
        source="proc(5), mem(4): /proc/kcore, /dev/mem and others show all memory there is",
        code="""
names = ["/proc/kcore", "/proc/kpageflags", "/proc/kpagecount", "/proc/vmcore", "/proc/kmsg"]
names += ["/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/proc/slabinfo"]
verdict([name for name in names if attempt(lambda: os.close(os.open(name, os.O_RDONLY)) or True)])
""",
        weakness=Weakness(
            arguments=with_more(lambda stage: ["--bind", stage.status, "/proc/kmsg"])
        ),
        fork_weakness=Weakness(template=with_mount("/tmp/data", "/proc/kmsg")),
    ),
    _of_devices(
        name="addresses-of-the-kernel",
        source="proc(5), /proc/kallsyms: what most holes of a kernel need to be of use",
        code="""
def first():
    with open("/proc/kallsyms") as file:
        return file.readline().split()[:1]
verdict([address for address in attempt(first) or () if address.strip("0")])
""",
        weakness=Weakness(
            arguments=with_more(lambda stage: ["--ro-bind", _symbols(stage), "/proc/kallsyms"])
        ),
        fork_weakness=Weakness(
            arguments=with_more(lambda stage: ["--ro-bind", _symbols(stage), "/run/symbols"]),
            template=with_mount("/run/symbols", "/proc/kallsyms"),
        ),
    ),
    _of_devices(
        name="devices-of-file-systems",
        source="mount(2), MS_NODEV: a device's file is one wherever it lies",
        code="""
known = {"null", "zero", "full", "random", "urandom", "tty", "console"}
with open("/proc/self/mountinfo") as file:
    mounts = [line.split() for line in file]
# Those of /dev are files of the host's; what is bound there is bound with its devices.
verdict([m[4] for m in mounts if "nodev" not in m[5].split(",")
         and not (m[4].startswith("/dev/") and m[4][5:] in known | {"pts"})
         and m[4] not in ("/proc/keys", "/proc/kallsyms")])
""",
        weakness=Weakness(arguments=with_more(_device_directory), template=MOUNTS_AS_THEY_COME),
    ),
)
