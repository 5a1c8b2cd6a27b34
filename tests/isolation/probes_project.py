"""Probes of the project's write protection, and of what would run on the host later."""

from __future__ import annotations

from functools import partial

from isolation.probe import Probe
from isolation.weaken import MOUNTS_AS_THEY_COME, WRITABLE_PROJECT, Weakness

_DEVICES = Weakness(
    arguments=lambda words, stage: (
        [
            *words[: (place := words.index("/project")) - 2],
            *("--dev-bind", stage.project.path),
            *words[place:],
        ]
    ),
    template=MOUNTS_AS_THEY_COME,
)

_of_project = partial(Probe, group="project", weakness=WRITABLE_PROJECT)

PROBES = (
    _of_project(
        name="project-attributes",
        source="xattr(7): attributes of the user's kind need no more than write permission",
        language="c",
        code="""
path = b"/project/victims/attributes"
def set_on(path):
    call("setxattr", path, b"user.nsm", b"x", 1, 0)
try:
    set_on(path)
except OSError as error:
    if error.errno == errno.EOPNOTSUPP:
        not_here("attributes on that file system")
    else:
        verdict(attempt(call, "removexattr", path, b"user.nsm"))
else:
    verdict("set one")
""",
    ),
    _of_project(
        name="project-flags",
        source="ioctl_iflags(2): flags of a file are set by a descriptor that only reads",
        language="c",
        code="""
GETFLAGS, SETFLAGS, NODUMP = 0x80086601, 0x40086602, 0x40
with open("/project/victims/flags") as file:
    flags = ctypes.c_long()
    def set_one():
        call("ioctl", file.fileno(), GETFLAGS, ctypes.byref(flags))
        flags.value |= NODUMP
        call("ioctl", file.fileno(), SETFLAGS, ctypes.byref(flags))
        return "set one"
    try:
        verdict(set_one())
    except OSError as error:
        if error.errno in (errno.ENOTTY, errno.EOPNOTSUPP):
            not_here("flags on that file system")
        else:
            verdict("")
""",
    ),
    _of_project(
        name="project-inode-by-descriptor",
        source="fchmod(2), futimens(3): modes and times are set by a descriptor that only reads",
        language="c",
        code="""
with open("/project/victims/inode") as file:
    ways = {"fchmod": lambda: os.fchmod(file.fileno(), 0o700),
            "futimens": lambda: os.utime(file.fileno(), (5, 5)),
            "fchown": lambda: os.fchown(file.fileno(), os.getuid(), os.getgid()),
            "fchmodat2": lambda: call(452, file.fileno(), b"", 0o755, 0x1000)}
    def works(way):
        try:
            way()
        except OSError:
            return False
        return True
    verdict([name for name, way in ways.items() if works(way)])
""",
    ),
    _of_project(
        name="project-mapped",
        source="mmap(2): writing to shared memory writes to the file",
        code="""
import mmap
path = "/project/victims/mapped"
fds = [fd for mode in (os.O_RDWR, os.O_RDONLY) if (fd := attempt(os.open, path, mode)) is not None]
def write(fd):
    with mmap.mmap(fd, 6, prot=mmap.PROT_READ | mmap.PROT_WRITE) as memory:
        memory[0:1] = b"V"
    return True
def upgrade(fd):
    "Mapped to be read, and made writable afterwards."
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(None, ctypes.c_size_t(6), 1, 1, fd, ctypes.c_long(0))
    page = ctypes.c_void_p(address)
    changed = libc.mprotect(page, ctypes.c_size_t(6), 3) == 0
    libc.munmap(page, ctypes.c_size_t(6))
    return changed
done = [way.__name__ for fd in fds for way in (write, upgrade) if attempt(way, fd)]
for fd in fds:
    os.close(fd)
verdict(done)
""",
    ),
    _of_project(
        name="project-truncated-by-opening",
        source="open(2): O_TRUNC with O_RDONLY, which the standard leaves open, truncates on Linux",
        code="""
path = "/project/victims/truncated"
if (fd := attempt(os.open, path, os.O_RDONLY | os.O_TRUNC)) is not None:
    os.close(fd)
verdict(os.stat(path).st_size == 0 and "truncated")
""",
    ),
    _of_project(
        name="project-access-times",
        source="mount(2): reading changes a file, too, unless its mount is read-only",
        code="""
path = "/project/victims/read"
if os.statvfs(path).f_flag & os.ST_NOATIME:
    not_here("a file system that notes access times")
else:
    before = os.stat(path).st_atime_ns
    with open(path) as file:
        file.read()
    verdict(os.stat(path).st_atime_ns != before and "the host can see what was read")
""",
    ),
    _of_project(
        name="project-nameless-file",
        source="open(2), O_TMPFILE: a file without a name, which gets one by linkat",
        language="c",
        code="""
TMPFILE, FOLLOW = 0o20200000, 0x400
fd = attempt(os.open, "/project", TMPFILE | os.O_RDWR)
named = fd is not None and attempt(
    call, "linkat", -100, f"/proc/self/fd/{fd}".encode(), -100, b"/project/nameless", FOLLOW) == 0
if fd is not None:
    os.close(fd)
verdict([word for word, done in (("made", fd is not None), ("named", named)) if done])
""",
    ),
    _of_project(
        name="project-names-exchanged",
        source="rename(2): RENAME_EXCHANGE changes no directory's length and removes nothing",
        language="c",
        code="""
EXCHANGE = 2
folder = b"/project/victims/"
verdict(attempt(call, "renameat2", -100, folder + b"one", -100, folder + b"other", EXCHANGE) == 0
        and "exchanged two")
""",
    ),
    _of_project(
        name="project-special-files",
        source="mknod(2), bind(2): pipes and sockets, by which host programs can be talked to",
        code="""
def bind():
    with socket.socket(socket.AF_UNIX) as one:
        one.bind("/project/socket")
    return True
def made(way, *arguments):
    try:
        way(*arguments)
    except OSError:
        return False
    return True
ways = {"pipe": (os.mkfifo, "/project/pipe"), "socket": (bind,)}
verdict([name for name, (way, *arguments) in ways.items() if made(way, *arguments)])
""",
    ),
    _of_project(
        name="project-flag",
        source="statvfs(3): what the mount itself says, and all that are below it",
        code="""
with open("/proc/self/mountinfo") as file:
    below = [line.split()[4] for line in file if line.split()[4].startswith("/project")]
verdict([path for path in below if not os.statvfs(path).f_flag & os.ST_RDONLY])
""",
    ),
    _of_project(
        name="project-git-hooks",
        source="CVE-2026-25725, githooks(5): hooks and settings that the host's git runs",
        language="bash",
        code="""
found=; cd /project
for hook in post-checkout pre-commit fsmonitor-watchman; do
  if (printf '#!/bin/sh\\n' >.git/hooks/$hook) 2>/dev/null; then found="$found $hook"; fi
done
if (echo '[core] fsmonitor = .git/hooks/pre-commit' >>.git/config) 2>/dev/null; then
  found="$found config"
fi
if (mkdir -p .git/modules/x && echo '* filter=x' >.gitattributes) 2>/dev/null; then
  found="$found attributes"
fi
cd /workspace; verdict "$found"
""",
    ),
    _of_project(
        name="project-settings-absent-at-launch",
        source="CVE-2026-25725: settings that are not there at the start, and run outside later",
        language="node",
        code="""
{
  const fs = require('fs'), path = require('path');
  const names = ['.envrc', '.vscode/tasks.json', '.claude/settings.json', '.mcp.json', '.npmrc',
    'package.json', 'node_modules/.bin/tsc', 'conftest.py', 'sitecustomize.py', 'flake.nix'];
  verdict(names.filter((name) => {
    try {
      fs.mkdirSync(path.dirname('/project/' + name), { recursive: true });
      fs.writeFileSync('/project/' + name, '', { flag: 'wx' });
      return true;
    } catch { return false; }
  }).join(' '));
}
""",
    ),
    _of_project(
        name="running-program-overwritten",
        source="CVE-2019-5736: /proc/PID/exe of a program of the host, opened again to be written",
        code="""
program = attempt(subprocess.Popen, ["/project/program", "60"])
if program is None and os.uname().machine not in ("x86_64", "aarch64"):
    not_here("the host's loader, without which the project's program does not start")
else:
    held = os.open(f"/proc/{program.pid}/exe", os.O_PATH)
    program.kill()
    program.wait()
    again = attempt(os.open, f"/proc/self/fd/{held}", os.O_WRONLY)
    for fd in (held, again):
        if fd is not None:
            os.close(fd)
    verdict(again is not None and "opened it to be written")
""",
    ),
    _of_project(
        name="device-in-project",
        source="mount(2), MS_NODEV: a device node that somebody left in a directory",
        needs="device",
        code="""
fd = attempt(os.open, "/project/device", os.O_RDWR)
if fd is not None:
    os.close(fd)
verdict(fd is not None and "opened a device")
""",
        weakness=_DEVICES,
    ),
    _of_project(
        name="link-in-project",
        source="CVE-2026-39861, CVE-2025-53109: a link in the project that leads out of it",
        code="""
verdict(attempt(os.stat, "/project/link") and "followed it to " + os.readlink("/project/link"))
""",
        weakness=Weakness(
            arguments=lambda words, stage: [
                *words[: (place := words.index("--remount-ro"))],
                *("--ro-bind", stage.secret, stage.secret),
                *words[place:],
            ]
        ),
    ),
)
