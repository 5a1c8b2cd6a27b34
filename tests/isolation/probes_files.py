"""Probes of what a jail shows and where it can write."""

from __future__ import annotations

from functools import partial

from isolation.probe import Probe
from isolation.weaken import (
    HOST_DIRECTORY,
    MOUNTS_AS_THEY_COME,
    NOT_CLOSED,
    WRITABLE_PROJECT,
    Weakness,
    both,
    with_more,
    without,
)

_of_devices = partial(Probe, group="devices")
_of_files = partial(Probe, group="files")

PROBES = (
    _of_files(
        name="host-directory",
        source="proc(5): a file by its path, and by each way that /proc has to a root",
        code="""
ways = ["", "/proc/self/root", "/proc/1/root", "/proc/self/cwd/..", "/proc/thread-self/root"]
ways += [f"/proc/{pid}/root" for pid in os.listdir("/proc") if pid.isdecimal()]
verdict([way for way in ways if attempt(os.stat, way + STAGE["secret"])])
""",
        weakness=HOST_DIRECTORY,
    ),
    _of_files(
        name="host-directory-from-bash",
        source="path_resolution(7): the same by a shell's own commands",
        language="bash",
        code="""
found=; for way in "" /proc/self/root /proc/1/root; do
  if [ -e "$way$SECRET" ] || cat "$way$SECRET" 2>/dev/null; then found="$found $way$SECRET"; fi
done; verdict "$found"
""",
        weakness=HOST_DIRECTORY,
    ),
    _of_files(
        name="host-directory-from-node",
        source="path_resolution(7): the same by Node's file system",
        language="node",
        code="""
verdict(['', '/proc/self/root', '/proc/1/root']
  .filter((way) => require('fs').existsSync(way + STAGE.secret)).join(' '))
""",
        weakness=HOST_DIRECTORY,
    ),
    _of_files(
        name="top-level",
        source="hier(7): what the root of a host has beside /usr",
        code="""
shown = {"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "run", "proc", "dev"}
more, place = set(os.listdir("/")) - shown - {"workspace", "tmp", "project"}, "/"
for part in STAGE["store"].split("/")[1:]:  # the way to what Nix has built, and nothing beside it
    more = (more if place == "/" else more | set(os.listdir(place))) - {part}
    place = os.path.join(place, part)
verdict(sorted(more))
""",
        weakness=Weakness(arguments=with_more(lambda _: ["--ro-bind", "/var", "/var"])),
    ),
    _of_files(
        name="etc",
        source="hier(7): settings, keys and people in /etc",
        code="""
shown = {"alternatives", "ca-certificates", "crypto-policies", "fonts", "ld.so.cache"}
shown |= {"pki", "ssl", "resolv.conf"}  # resolver-of-the-host looks into the last
shown |= {path.split("/")[2] for path in STAGE["etc"]}
more = set(os.listdir("/etc")) - shown - {"passwd", "gitconfig", "group", "hosts", "nsswitch.conf"}
private = [p for p in ("/etc/ssl/private", "/etc/pki/tls/private") if os.path.lexists(p)]
people = [l for l in open("/etc/passwd") if l.split(":")[0] not in ("user", "nobody")]
verdict(sorted(more) + private + people)
""",
        weakness=Weakness(arguments=with_more(lambda _: ["--ro-bind", "/etc", "/etc"])),
    ),
    Probe(
        name="run",
        group="supervisor",
        source="sockets that are visible can be connected",
        code="""
ours = {"agent.py", "bin", "template.py", "filter", "policy.json"}
verdict([name for name in attempt(os.listdir, "/run") or [] if name != "nsm"]
        + sorted(set(attempt(os.listdir, "/run/nsm") or []) - ours))
""",
        weakness=Weakness(
            arguments=with_more(lambda stage: ["--ro-bind", stage.directory, "/run/user"])
        ),
    ),
    _of_devices(
        name="devices",
        source="null(4), mem(4), hier(7): devices by their names",
        code="""
shown = {"core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin"}
more = set(os.listdir("/dev")) - shown - {"stdout", "tty", "urandom", "zero", "console"}
verdict(sorted(more) + os.listdir("/dev/shm"))
""",
        weakness=Weakness(
            arguments=both(
                without("--remount-ro"), lambda words, _: [*words, "--dev-bind", "/dev", "/dev"]
            )
        ),
    ),
    _of_devices(
        name="controlling-terminal",
        source="CVE-2017-5226: characters pushed into the terminal of whoever started the jail",
        code="""
verdict(attempt(os.open, "/dev/tty", os.O_RDWR) is not None and "/dev/tty opens")
""",
        weakness=Weakness(arguments=with_more(lambda _: ["--dev-bind", "/dev/null", "/dev/tty"])),
    ),
    _of_files(
        name="writable-places",
        source="/ and /dev are writable file systems in memory",
        code="""
def directories(path, depth):
    yield path
    if depth and path not in ("/proc", "/usr"):
        for entry in attempt(os.scandir, path) or ():
            if entry.is_dir(follow_symlinks=False):
                yield from directories(entry.path, depth - 1)
def writable(path):
    try:
        fd = os.open(path + "/probe", os.O_CREAT | os.O_WRONLY)
    except OSError:
        return False
    os.close(fd)
    os.unlink(path + "/probe")
    return True
with open("/proc/self/mountinfo") as file:
    places = {line.split()[4] for line in file}
places |= set(directories("/", 3)) | set(directories("/usr", 1))
places.discard("/tmp/.nsm")  # certificates, where the machine has some of a company
verdict(sorted({p for p in places if writable(p)} ^ {"/workspace", "/tmp", "/dev/shm"}))
""",
        weakness=NOT_CLOSED,
        fork_held_twice={
            "template": Weakness(template=MOUNTS_AS_THEY_COME),
            "fork": Weakness(arguments=without("--remount-ro")),
        },
    ),
    Probe(
        name="sizes",
        group="resources",
        source="--size of /tmp does not hold for /dev/shm",
        code="""
found = {path: os.statvfs(path).f_blocks * os.statvfs(path).f_frsize for path in STAGE["sizes"]}
wrong = {path: size for path, size in found.items() if size != STAGE["sizes"][path]}
def overfill(path):
    block = bytes(1 << 20)
    try:
        with open(path + "/fill", "wb", buffering=0) as file:
            for _ in range((STAGE["sizes"][path] >> 20) + 2):
                if file.write(block) < len(block):
                    return False
        return True
    except OSError as error:
        return error.errno != errno.ENOSPC
    finally:
        os.unlink(path + "/fill")
verdict(wrong or [path for path in STAGE["sizes"] if overfill(path)])
""",
        weakness=Weakness(
            arguments=lambda words, _: [
                word
                for index, word in enumerate(words)
                # --perms MODE --size BYTES --tmpfs /dev/shm
                if "/dev/shm" not in words[index : index + 6] or word == "/dev"
            ]
        ),
        fork_weakness=Weakness(
            template="""
make_file_systems = space["make_file_systems"]
space["make_file_systems"] = lambda sizes: make_file_systems({p: 2 * n for p, n in sizes.items()})
"""
        ),
    ),
    Probe(
        name="project-write",
        group="project",
        source="CVE-2025-53109: a project that may be read is written to",
        code="""
path = "/project/data"
ways = {
    "create": lambda: os.open("/project/new", os.O_CREAT | os.O_WRONLY),
    "open": lambda: os.open(path, os.O_WRONLY),
    "truncate": lambda: os.truncate(path, 0),
    "rename": lambda: os.rename(path, "/project/other"),
    "chmod": lambda: os.chmod(path, 0o777),
    "utime": lambda: os.utime(path),
    "symlink": lambda: os.symlink("x", "/project/link"),
    "mkdir": lambda: os.mkdir("/project/directory"),
    "link": lambda: os.link(path, "/project/hard"),
    "unlink": lambda: os.unlink(path),
    "through /proc": lambda: os.open("/proc/self/cwd/../project/data", os.O_RDWR),
    "reopened": lambda: os.open(f"/proc/self/fd/{opened.fileno()}", os.O_WRONLY),
}
def works(way):
    try:
        way()
    except OSError:
        return False
    return True
with open(path) as opened:
    verdict([name for name, way in ways.items() if works(way)])
""",
        weakness=WRITABLE_PROJECT,
        fork_held_twice={"template": Weakness(template=MOUNTS_AS_THEY_COME)},
    ),
)
