"""Traces that a session leaves behind, and how a sibling looks for them."""

from __future__ import annotations

from dataclasses import dataclass

WORD = "sibling-7c30f1"

PRELUDE = f"""
import ctypes, fcntl, hashlib, os, signal, socket, subprocess, sys, time
WORD = {WORD!r}
libc = ctypes.CDLL(None, use_errno=True)
def verdict(found):
    print("FOUND: " + str(found) if found else "NOTHING", flush=True)
def attempt(action, *arguments):
    try:
        return action(*arguments)
    except OSError:
        return None
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """Something that one session has and no sibling may find.

    Attributes:
        plant: code that makes it; what it makes stays.
        find: code that prints `FOUND: ` and what, or `NOTHING`. Where it was planted, it must find.
        shared: a patch of the template with which siblings find it, too.
        shared_without: an option of the template's bwrap without which they do.
    """

    name: str
    plant: str
    find: str
    shared: str = ""
    shared_without: str = ""


SECRETS = (
    Secret(
        name="processes",
        plant="""
child = subprocess.Popen(["/bin/sh", "-c", "read -r _", WORD], stdin=subprocess.PIPE,
                         env={"WORD": WORD})
""",
        find="""
def text(path):
    with open(path, "rb") as file:
        return file.read().decode(errors="replace")
paths = [f"/proc/{pid}/{name}" for pid in os.listdir("/proc") if pid.isdecimal()
         for name in ("cmdline", "environ")]
verdict([path for path in paths if WORD in (attempt(text, path) or "")])
""",
    ),
    Secret(
        name="files",
        plant="""
for place in ("/workspace", "/tmp", "/dev/shm"):
    os.makedirs(f"{place}/{WORD}")
""",
        find="""
verdict([path for place in ("/workspace", "/tmp", "/dev", "/run")
         for path, names, _ in os.walk(place) if WORD in names])
""",
        shared="""
mount = space["mount"]
def mount_less(source, target, *rest):
    if target != "/dev/shm":
        mount(source, target, *rest)
space["mount"] = mount_less
""",
        shared_without="--remount-ro",
    ),
    Secret(
        name="system-v",
        plant="""
IPC_CREAT, KEY = 0o1000, 0x5EC2E7
shared = (libc.shmget(KEY, 4096, IPC_CREAT | 0o666), libc.semget(KEY, 1, IPC_CREAT | 0o666),
          libc.msgget(KEY, IPC_CREAT | 0o666))
""",
        find="""
KEY = 0x5EC2E7
got = {"shm": libc.shmget(KEY, 0, 0), "sem": libc.semget(KEY, 0, 0), "msg": libc.msgget(KEY, 0)}
listed = [kind for kind in got if len(open(f"/proc/sysvipc/{kind}").readlines()) > 1]
verdict([kind for kind, number in got.items() if number >= 0] + listed)
""",
        shared='space["NAMESPACES"] &= ~space["CLONE_NEWIPC"]',
    ),
    Secret(
        name="message-queues",
        plant="""
queue = libc.mq_open(b"/" + WORD.encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
assert queue >= 0
""",
        find="""
verdict(libc.mq_open(b"/" + WORD.encode(), os.O_RDWR) >= 0 and "the queue")
""",
        shared='space["NAMESPACES"] &= ~space["CLONE_NEWIPC"]',
    ),
    Secret(
        name="abstract-sockets",
        plant="""
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\\0" + WORD)
abstract.listen()
""",
        find="""
def connect():
    with socket.socket(socket.AF_UNIX) as one:
        one.connect("\\0" + WORD)
        return True
verdict([attempt(connect) and "connected"] if attempt(connect) else WORD in
        open("/proc/net/unix").read() and "listed")
""",
        shared="""
space["NAMESPACES"] &= ~space["CLONE_NEWNET"]
space["start_loopback"] = lambda **_: None
""",
    ),
    Secret(
        name="path-sockets",
        plant="""
for place in ("/workspace", "/tmp", "/dev/shm"):
    one = socket.socket(socket.AF_UNIX)
    one.bind(f"{place}/{WORD}.socket")
    one.listen()
    globals()[f"listener of {place}"] = one
""",
        find="""
def connect(place):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(f"{place}/{WORD}.socket")
        return True
verdict([place for place in ("/workspace", "/tmp", "/dev/shm") if attempt(connect, place)])
""",
    ),
    Secret(
        name="ports",
        plant="""
listener = socket.create_server(("127.0.0.1", 45123))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("127.0.0.1", 45123))
""",
        find="""
def connect(address):
    with socket.create_connection((address, 45123), timeout=5):
        return True
found = [a for a in ("127.0.0.1", "127.0.0.2", "localhost") if attempt(connect, a)]
port = format(45123, "X")
listed = [kind for kind in ("tcp", "udp") if port in open(f"/proc/net/{kind}").read()]
verdict(found + listed)
""",
        shared="""
space["NAMESPACES"] &= ~space["CLONE_NEWNET"]
space["start_loopback"] = lambda **_: None
""",
    ),
    Secret(
        name="terminals",
        plant="""
terminal, other_end = os.openpty()
os.write(terminal, WORD.encode())
""",
        find="""
names = [name for name in os.listdir("/dev/pts") if name != "ptmx"]
verdict(names + [name for name in "0123" if attempt(os.open, f"/dev/pts/{name}", os.O_RDWR)])
""",
        # Where each has its own, the template's one is not seen.
        shared="""
mount = space["mount"]
def mount_less(source, target, *rest):
    if target != "/dev/pts":
        mount(source, target, *rest)
space["mount"] = mount_less
""",
    ),
    Secret(
        name="variables-and-modules",
        plant="""
import json
os.environ["SIBLING"] = json.sibling = WORD
""",
        find="""
import json
verdict([name for name, value in (("variable", os.environ.get("SIBLING")),
                                  ("module", getattr(json, "sibling", None))) if value == WORD])
""",
    ),
    Secret(
        name="memory",
        # Whoever looks for it knows a beginning, and what the rest must be by its digest only:
        # else it would find its own needle.
        plant="""
remembered = hashlib.sha256(b"sibling").hexdigest()
remembered = ("known beginning " + remembered).encode()
""",
        find="""
begin = bytes(reversed(b" gninnigeb nwonk"))
rest = hashlib.sha256(hashlib.sha256(b"sibling").hexdigest().encode()).digest()
found = []
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", buffering=0) as memory:
    for line in maps:
        where, permissions = line.split()[:2]
        low, high = (int(number, 16) for number in where.split("-"))
        if not permissions.startswith("rw"):
            continue
        memory.seek(low)
        data = attempt(memory.read, high - low) or b""
        place = data.find(begin)
        while place >= 0:
            after = data[place + len(begin):place + len(begin) + 64]
            if hashlib.sha256(after).digest() == rest:
                found.append(hex(low + place))
            place = data.find(begin, place + 1)
verdict(found)
""",
    ),
    Secret(
        name="locks",
        plant="""
locked = open("/workspace/locked", "w")
fcntl.flock(locked, fcntl.LOCK_EX)
""",
        find="""
# Those of open files have nobody whose process id could be hidden: everyone sees the machine's.
locks = [line for line in open("/proc/locks") if " -1 " not in line]
verdict("".join(locks).strip())
""",
    ),
)
