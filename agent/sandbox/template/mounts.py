"""File systems of one session.

The fork mounts the overlay of a project itself, while it has the right to: bubblewrap can from 0.11
on only, and nobody could look into its upper layer. It removes its mount of that layer, so no path
in the session leads there.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct

from sandbox.template.kernel import (
    AT_FDCWD,
    AT_RECURSIVE,
    MNT_DETACH,
    MOUNT_ATTR_NOSUID,
    MOUNT_ATTR_RDONLY,
    MOUNT_SETATTR,
    MS_BIND,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_PRIVATE,
    MS_RDONLY,
    MS_REC,
    MS_REMOUNT,
    SetupError,
    call,
    libc,
    mount,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


POLICY_PATH = "/run/nsm/policy.json"
"""Path where a session finds its rules."""

INODES_PER_MB = 128
"""Each takes about 1 KiB of the kernel's memory, which the size of a tmpfs does not count."""

TERMINALS = 128
"""At once in a session, of some 3,000 that all of the machine's containers have together."""

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def make_root(
    image: str, size_mb: int, kept: Sequence[str], made: Sequence[str], copied: Sequence[str]
) -> Sequence[int]:
    """Have an overlay of an image's files as the root directory, in place of the jail's own.

    Mount points are made in the layer of what is changed, before there is an overlay: so no link of
    the image is followed, and a directory takes the place of a link. Return descriptors, as of
    `make_copy_on_write`.

    Args:
        kept: directories of the jail that the new root has, too.
        made: directories of the new root for mounts that are still to come.
        copied: files of the jail that the new root has copies of; bwrap has unlinked them, and
            the kernel binds no such files.
    """
    room = "/workspace"  # any directory would do; the session's own /workspace is mounted over it
    changed, work = _room_for_changes(f"copy of {image}", room, size_mb)
    root = f"{room}/root"
    os.mkdir(root, 0o755)
    os.chmod(changed, 0o755)
    above: dict[str, None] = {}
    for path in (*kept, *made):
        *parents, name = path.strip("/").split("/")
        above.update(dict.fromkeys(_make_directories_below(changed, parents)))
        _make_directories_below(changed, [*parents, name])
    for path in copied:
        *parents, name = path.strip("/").split("/")
        _make_directories_below(changed, parents)
        with open(path, "rb") as source, open(f"{changed}{path}", "xb") as target:
            target.write(source.read())
    options = f"lowerdir={image},upperdir={changed},workdir={work},userxattr"
    mount("overlay", root, "overlay", MS_NOSUID | MS_NODEV, options)
    descriptors = [os.open(path, DIRECTORY) for path in (changed, root, image)]
    for path in above:
        # A directory that is a mount cannot be renamed. Else code could move what the agent's own
        # modules are imported from, and put others in their place.
        mount(f"{root}{path}", f"{root}{path}", "", MS_BIND)
    for path in kept:
        mount(path, f"{root}{path}", "", MS_BIND | MS_REC)
    os.chdir(root)
    # pivot_root(2) leaves the old root on top of the new one: unmount it, with all that is in it.
    call("pivot_root", libc.pivot_root(b".", b"."))
    call("umount the old root", libc.umount2(b".", MNT_DETACH))
    os.chdir("/")
    return descriptors


def _make_directories_below(place: str, names: Sequence[str]) -> Sequence[str]:
    """Make directories below each other; return their paths below `place`."""
    paths = ["/".join(["", *names[:count]]) for count in range(1, len(names) + 1)]
    for path in paths:
        with contextlib.suppress(FileExistsError):
            os.mkdir(place + path, 0o755)
    return paths


def _room_for_changes(what: str, place: str, size_mb: int) -> tuple[str, str]:
    """Mount the file system in memory that an overlay keeps its changes in.

    Return paths of the directory of the changes, and of the empty one that the kernel wants.
    """
    options = f"size={size_mb}m,nr_inodes={size_mb * INODES_PER_MB},mode=0700"
    mount("tmpfs", place, "tmpfs", MS_NOSUID | MS_NODEV, options)
    changed, work = f"{place}/changed", f"{place}/work"
    os.mkdir(work, 0o700)
    os.mkdir(changed, 0o700)
    try:
        # Without, the kernel mounts it all the same, and directories cannot be made again.
        os.setxattr(changed, "user.overlay.tried", b"")
        os.removexattr(changed, "user.overlay.tried")
    except OSError as error:
        why = "files in memory have no attributes here, which takes Linux 6.6"
        raise SetupError(f"{what}: {why}: {error.strerror}") from error
    return changed, work


def make_copy_on_write(
    path: str, size_mb: int, fill: Callable[[str], None] = lambda _: None
) -> Sequence[int]:
    """Mount an overlay over a directory: what is changed there is changed in a copy, in memory.
    `fill` puts changes that are there from the beginning into a directory.

    The copy lies in a file system that is nowhere to be seen but through the overlay: the kernel
    believes its attributes, so code is not to set them. Return descriptors: the directory of what
    was changed, the overlay, and the directory below it.
    """
    hidden = "/workspace"  # as good as any; the session's own comes over it in a moment
    try:
        changed, work = _room_for_changes(f"copy of {path}", hidden, size_mb)
        os.chmod(changed, os.stat(path).st_mode & 0o777)
        fill(changed)
        descriptors = [os.open(changed, DIRECTORY)]
        # Not by its path, in which the options' own separators may occur.
        os.chdir(path)
        below = os.open(".", DIRECTORY)
        # userxattr: the kernel takes no other attributes from a user namespace. Linux 5.11, and
        # 6.6 for a tmpfs.
        options = f"lowerdir=.,upperdir={changed},workdir={work},userxattr"
        mount("overlay", path, "overlay", MS_NOSUID | MS_NODEV, options)
        descriptors += [os.open(path, DIRECTORY), below]
        os.chdir("/")
    except OSError as error:
        raise SetupError(f"copy of {path}: {error.strerror}") from error
    call(f"umount {hidden}", libc.umount2(hidden.encode(), MNT_DETACH))
    return descriptors


def keep_mounts() -> None:
    """Have all that the template's jail shows stay as it is, and read-only.

    What is mounted on the host below a directory that a jail shows, such as the project, appears in
    the jail as well if the host's mounts are shared, as systemd has them; and writable, since that
    bwrap has made the directory read-only does not concern what came later.
    """
    wanted = struct.pack("4Q", MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID, 0, MS_PRIVATE, 0)
    everything = ctypes.c_uint(AT_RECURSIVE)
    if libc.syscall(MOUNT_SETATTR, AT_FDCWD, b"/", everything, wanted, len(wanted)) == 0:
        return
    if ctypes.get_errno() != errno.ENOSYS:
        raise SetupError(f"mount_setattr: {os.strerror(ctypes.get_errno())}")
    mount("", "/", "", MS_REC | MS_PRIVATE)  # before Linux 5.12


def make_file_systems(sizes: Mapping[str, int]) -> None:
    """Mount what a session has for itself; `sizes` are MiB by path."""
    for path, size_mb in sizes.items():
        mode = "0755" if path == "/workspace" else "1777"
        options = f"size={size_mb}m,nr_inodes={size_mb * INODES_PER_MB},mode={mode}"
        mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options)
    # The template's own is one file system for all: in it, terminals of others would show.
    options = f"ptmxmode=0666,mode=0620,max={TERMINALS}"
    mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, options)
    # After the fork into the new PID namespace, whose processes it shows.
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def make_directories(paths: Sequence[str]) -> None:
    """Make the directories that preloaded modules have made for themselves."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.mkdir(path, 0o700)


def write_files(contents: Mapping[str, bytes]) -> None:
    """Write files for a session that the template has for all."""
    for path, content in contents.items():
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
            with open(path, "xb") as file:
                file.write(content)


def told_by_proc() -> Sequence[str]:
    """Files of /proc that tell code, whatever its namespaces, what is not for it to know."""
    told: list[str] = []
    if os.path.exists("/proc/keys"):
        told.append("/proc/keys")  # names the keys that the host's user has in the kernel
    with contextlib.suppress(OSError), open("/proc/kallsyms", "rb") as file:
        # Where the kernel's functions are, if kernel.kptr_restrict and kernel.perf_event_paranoid
        # have been lowered; else zeros.
        if any(word.strip(b"0") for word in file.readline().split()[:1]):
            told.append("/proc/kallsyms")
    return told


def cover(paths: Sequence[str]) -> None:
    """Have files be empty."""
    for path in paths:
        mount("/dev/null", path, "", MS_BIND)


def show_policy(text: bytes, place: str) -> None:
    """Show a session its rules, where its template has an empty file for them.

    The file lies in a file system of the session's own, whose code could change it but for the
    read-only mount, which is all that leads to it in the end.
    """
    original = f"{place}/.policy"
    fd = os.open(original, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    try:
        os.write(fd, text)
    finally:
        os.close(fd)
    mount(original, POLICY_PATH, "", MS_BIND)
    read_only = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
    mount("", POLICY_PATH, "", read_only)
    os.unlink(original)
