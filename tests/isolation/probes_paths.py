"""Probes of paths and names, and of files that are the host's in one way or another."""

from __future__ import annotations

from functools import partial

from isolation.probe import Probe
from isolation.stage import Stage
from isolation.weaken import (
    HOST_DIRECTORY,
    NOT_CLOSED,
    Arguments,
    Weakness,
    with_more,
    with_mount,
    without_mounts,
)


def _host_tmp(words: Arguments, stage: Stage) -> Arguments:
    """A directory like the host's in place of a file system of its own."""
    place = words.index("--remount-ro")
    return [*words[:place], "--bind", f"{stage.directory}/tmp", "/tmp", *words[place:]]


_of_files = partial(Probe, group="files")
_of_names = partial(Probe, group="names")

PROBES = (
    _of_names(
        name="paths-spelled-otherwise",
        source="path_resolution(7): one place has any number of names",
        code="""
secret, parts = STAGE["secret"], STAGE["secret"].split("/")[1:]
folder = os.path.dirname(secret)
ways = ["/" + "../" * 60 + secret[1:], "//" + secret[1:], "/.//./" + "/./".join(parts),
        folder + "/../" + os.path.basename(folder) + "/secret",
        "/proc/self/../../" + secret, "/tmp/.." + secret, "/dev/fd/../root" + secret,
        "/workspace/" + "./" * 1500 + ".." + secret]
verdict([way[:40] for way in ways if attempt(os.stat, way)])
""",
        weakness=HOST_DIRECTORY,
    ),
    _of_names(
        name="up-by-descriptors",
        source="openat(2): `..` of a directory that is held, step by step",
        code="""
starts = ["/project", "/project/victims", "/workspace", "/dev/pts", "/proc/self"]
starts += [place for place in ("/usr", STAGE["store"]) if os.path.isdir(place)]
found = []
for start in starts:
    fd = os.open(start, os.O_PATH | os.O_DIRECTORY)
    for step in range(12):
        try:
            os.stat(STAGE["secret"][1:], dir_fd=fd)
            found.append(start)
        except OSError:
            pass
        up = os.open("..", os.O_PATH | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = up
    os.close(fd)
verdict(sorted(set(found)))
""",
        weakness=HOST_DIRECTORY,
    ),
    _of_names(
        name="neighbours-of-the-project",
        source="CVE-2025-53110: /work may be read, so /work-other may, too",
        language="bash",
        code="""
found=; for way in "$PROJECT-other" /project-other /project/../project-other \\
    /proc/self/cwd/../project-other "/proc/$$/root$PROJECT-other"; do
  if [ -e "$way/secret" ]; then found="$found $way"; fi
done; verdict "$found"
""",
        weakness=HOST_DIRECTORY,
    ),
    _of_names(
        name="directories-renamed",
        source="rename(2): what cannot be changed lies in what can",
        code="""
places = ["/run/nsm", "/run", "/etc", "/usr", "/dev/pts", "/proc", "/project", "/workspace"]
moved = []
for place in places:
    if os.path.isdir(place) and not os.path.islink(place):
        try:
            os.rename(place, place + "-moved")
        except OSError:
            continue
        moved.append(place)
        os.rename(place + "-moved", place)
verdict(moved)
""",
        weakness=NOT_CLOSED,
    ),
    _of_names(
        name="links-replaced",
        source="/bin and /lib are links, by which siblings find programs",
        code="""
links = [entry.path for entry in os.scandir("/") if entry.is_symlink()]
changed = []
for link in links:
    target = os.readlink(link)
    try:
        os.unlink(link)
    except OSError:
        continue
    changed.append(link)
    os.symlink(target, link)
verdict(changed)
""",
        weakness=NOT_CLOSED,
    ),
    _of_names(
        name="files-that-siblings-read",
        source="passwd(5), nsswitch.conf(5): made up, and the same file for all siblings",
        code="""
def change(path):
    os.chmod(path, 0o644)
    with open(path, "a") as file:
        file.write("# changed\\n")
def works(path):
    try:
        change(path)
    except OSError:
        return False
    return True
verdict([name for name in ("passwd", "group", "hosts", "nsswitch.conf") if works("/etc/" + name)])
""",
        weakness=NOT_CLOSED,
    ),
    _of_files(
        name="host-program-by-loader",
        source="ld.so(8): `ld-linux.so PROGRAM` gets around lists of what may be executed",
        language="bash",
        code="""
found=; for loader in /lib64/ld-linux-*.so.* /lib/ld-linux-*.so.*; do
  if [ -e "$loader" ] && "$loader" "${SECRET%/secret}/program" 0 2>/dev/null; then
    found="$found $loader"
  fi
done; verdict "$found"
""",
        weakness=HOST_DIRECTORY,
    ),
    _of_files(
        name="mount-table",
        source="proc(5), mountinfo: nothing is mounted that has no reason to be",
        code="""
known = ("/usr", "/etc", "/dev", "/proc", "/tmp", "/workspace", "/project", "/run/nsm")
with open("/proc/self/mountinfo") as file:
    places = {line.split()[4] for line in file} - {"/"}
roots = [p for p in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32") if p in places]
store = (STAGE["store"],) if STAGE["store"] else ()
def of_the_store(path):
    shells = (f"{place.path}/bin/{name}" for top in store for place in os.scandir(top)
              for name in ("sh", "bash"))
    return any(attempt(os.path.samefile, path, shell) for shell in shells)
roots += [p for p in ("/bin/sh",) if p in places and of_the_store(p)]
verdict([place for place in sorted(places - set(roots))
         if not any((place + "/").startswith(one + "/") for one in (*known, *store))])
""",
        weakness=HOST_DIRECTORY,
    ),
    _of_files(
        name="links-at-the-top",
        source="symlink(7): a link names what it leads to, be it there or not",
        code="""
links = [entry for top in ("/", "/run", "/dev") for entry in attempt(os.scandir, top) or ()
         if entry.is_symlink()]
inside = ("/usr/", "/proc/", "/dev/", "/nix/")
targets = {entry.path: os.path.join(os.path.dirname(entry.path), os.readlink(entry.path))
           for entry in links}
verdict([name for name, target in targets.items()
         if not (os.path.normpath(target) + "/").startswith(inside)])
""",
        weakness=Weakness(
            arguments=with_more(lambda stage: ["--symlink", stage.directory, "/host"])
        ),
    ),
    _of_files(
        name="temporary-files-of-the-host",
        source="CVE-2026-46406: a file in /tmp whose name can be guessed",
        code="""
name = STAGE["temporary"]
verdict([place for place in ("/tmp", "/var/tmp", "/dev/shm")
         if attempt(os.stat, f"{place}/{name}")])
""",
        weakness=Weakness(
            arguments=_host_tmp,
            # A fork's own would cover it.
            template=without_mounts("/tmp"),
        ),
    ),
    _of_files(
        name="settings-of-the-machine",
        source="proc(5): anything in /proc but a process's own that may be opened to write",
        code="""
# Of its own IPC namespace, of its own PID namespace, and to be told when resources are scarce.
known = ("fs/mqueue/", "kernel/auto_msgmni", "kernel/msg", "kernel/sem", "kernel/shm",
         "kernel/ns_last_pid", "kernel/pid_max")
known = ("/proc/pressure/", *("/proc/sys/" + name for name in known))
found = []
for path, folders, files in os.walk("/proc"):
    if path == "/proc":
        folders[:] = [name for name in folders if not name.isdecimal()]
        folders[:] = [name for name in folders if name not in ("self", "thread-self", "net")]
    for name in files:
        place = f"{path}/{name}"
        if place.startswith(known):
            continue
        fd = attempt(os.open, place, os.O_WRONLY | os.O_NONBLOCK)
        if fd is not None:
            # A null device that covers something is not a setting.
            if not stat.S_ISCHR(os.fstat(fd).st_mode):
                found.append(place)
            os.close(fd)
verdict(found)
""",
        weakness=Weakness(
            arguments=with_more(lambda stage: ["--bind", stage.status, "/proc/sys/vm/swappiness"])
        ),
        fork_weakness=Weakness(template=with_mount("/tmp/data", "/proc/sys/vm/swappiness")),
    ),
)
