"""Paths of nsm's socket, state and configuration, by one rule for all programs.

MCP clients start their servers with few variables, so nothing here needs more than a user id.
Standard library only, and little of it: the shim pays for what this imports.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from contextlib import suppress

TYPE_CHECKING = False  # `typing` itself takes 8 ms to import; checkers know this name
if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_SOCKET_PATH_BYTES = 107
"""`sun_path` in unix(7), without its final NUL."""


class PathError(OSError):
    """A path that nsm needs is missing, unusable or unsafe; the message says what to do."""


BOX_PROGRAMS = "/run/nsm/bin"
"""In a box of nsm's, and nowhere else: the directory of `nsm` and `nsm-mcp`, first on PATH."""


def socket_path() -> str:
    """The control socket: ``NSM_SOCKET``, else ``control.sock`` in `runtime_dir`.

    Raises:
        PathError: the path is relative, a directory's, or too long for a socket.
    """
    path = _named("NSM_SOCKET") or os.path.join(runtime_dir(), "control.sock")
    check_socket_path(path)
    return path


def check_socket_path(path: str) -> None:
    """Refuse a path that no socket can have: it is relative, a directory's, or too long."""
    if not os.path.isabs(path):
        raise PathError(
            f"the socket's path {path!r} is relative. Set NSM_SOCKET to an absolute one."
        )
    if path.endswith("/"):
        raise PathError(
            f"the socket's path {path!r} is that of a directory. Set NSM_SOCKET to that of a file."
        )
    length = len(os.fsencode(path))
    if length > _MAX_SOCKET_PATH_BYTES:
        raise PathError(
            f"the socket's path has {length} bytes, at most {_MAX_SOCKET_PATH_BYTES} are possible: "
            f"{path!r}. Set NSM_SOCKET to a shorter one."
        )


def runtime_dir() -> str:
    """The directory of the socket and of the locks.

    That of ``NSM_SOCKET``, else ``$XDG_RUNTIME_DIR/nsm``, else ``/run/user/UID/nsm`` if that
    directory is ours, else ``/tmp/nsm-UID``.
    """
    named = _named("NSM_SOCKET")
    if named:
        return os.path.dirname(named)
    base = _xdg("XDG_RUNTIME_DIR")
    if base is None:
        base = f"/run/user/{os.getuid()}"
        if not _is_ours(base):
            return f"/tmp/nsm-{os.getuid()}"  # noqa: S108  # checked by ensure_private_dir
    return os.path.join(base, "nsm")


def state_dir() -> str:
    """The directory of logs and journals: ``$XDG_STATE_HOME/nsm`` or ``~/.local/state/nsm``."""
    return os.path.join(_xdg("XDG_STATE_HOME") or os.path.join(home(), ".local/state"), "nsm")


def config_dir() -> str:
    """The directory of ``config.toml``: ``$XDG_CONFIG_HOME/nsm`` or ``~/.config/nsm``."""
    return os.path.join(_xdg("XDG_CONFIG_HOME") or os.path.join(home(), ".config"), "nsm")


def data_dir() -> str:
    """The directory of environments from packages, and of saves: ``$XDG_DATA_HOME/nsm``, else
    ``~/.local/share/nsm``."""
    return os.path.join(_xdg("XDG_DATA_HOME") or os.path.join(home(), ".local/share"), "nsm")


def cache_dir() -> str:
    """Cache directory, safe to delete: ``$XDG_CACHE_HOME/nsm`` or ``~/.cache/nsm``."""
    return os.path.join(_xdg("XDG_CACHE_HOME") or os.path.join(home(), ".cache"), "nsm")


def log_path() -> str:
    """The supervisor's log when it was not started in the foreground."""
    return os.path.join(state_dir(), "supervisor.log")


def audit_path() -> str:
    """Return the path of the audit log: who ran what, when, in which session."""
    return os.path.join(state_dir(), "audit.jsonl")


def tools_dir() -> str:
    """The definitions of the bridge's programs."""
    return os.path.join(config_dir(), "tools")


def bridge_audit_path() -> str:
    """Return the path of the bridge's ledger: who asked for which program, and the outcome."""
    return os.path.join(state_dir(), "audit.log")


def http_token_path() -> str:
    """The secret of clients that come by HTTP."""
    return os.path.join(state_dir(), "http-token")


def supervisor_command() -> tuple[str, ...]:
    """Command of the supervisor's program: ``NSM_SUPERVISOR``, else with this Python.

    Packages whose programs need surroundings of their own (a PATH, modules) name theirs.
    """
    named = _named("NSM_SUPERVISOR")
    if not named:
        return (sys.executable, "-P", "-m", "nsmd")
    if not os.path.isabs(named):
        raise PathError(
            f"the program {named!r} is relative. Set NSM_SUPERVISOR to the absolute path of "
            "nsm-supervisor, or unset it."
        )
    return (named,)


def search_path() -> str:
    """PATH without what depends on the working directory, which may be a stranger's checkout.

    To look for programs of the host. Those that are named to `subprocess` without a directory are
    found in this way with ``cwd="/"``.
    """
    return os.pathsep.join(filter(os.path.isabs, os.get_exec_path()))


def _named(variable: str) -> str:
    """The path that a variable holds, empty where it is not set; no shell has expanded the `~` of
    an editor's entry."""
    return os.path.expanduser(os.environ.get(variable, ""))


def home() -> str:
    """``$HOME`` if it is absolute, else the home directory in the password database."""
    path = os.environ.get("HOME", "")
    if os.path.isabs(path):
        return path
    import pwd  # noqa: PLC0415  # rarely needed

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        raise PathError(
            f"user {os.getuid()} has no entry in the password database. Set HOME."
        ) from None


def ensure_runtime_dir() -> str:
    """Make `runtime_dir` where it is missing, and check that it is safe; returns its path."""
    path = runtime_dir()
    ensure_private_dir(path)
    return path


def ensure_private_dir(path: str) -> None:
    """Make a directory with mode 0700 where it is missing; check one that exists.

    Whoever can write to the directory can put a socket of their own in the supervisor's place,
    and `/tmp` lets anyone make ours first.

    Raises:
        PathError: it can't be made, is a link or no directory, is not ours, or is open to others.
    """
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        status = os.lstat(path)
    except FileExistsError:
        status = os.lstat(path)
    except OSError as error:
        raise PathError(
            f"the directory {path!r} can't be made: {error.strerror}. {_another_place(path)}."
        ) from error
    if not stat.S_ISDIR(status.st_mode):
        what = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a directory"
        raise PathError(f"{path!r} is {what}. Remove it. {_another_place(path)}.")
    if status.st_uid != os.geteuid():
        raise PathError(
            f"the directory {path!r} belongs to user {status.st_uid}, not to you "
            f"({os.geteuid()}). {_another_place(path)}."
        )
    if status.st_mode & 0o077:
        raise PathError(
            f"the directory {path!r} is open to others (mode {stat.S_IMODE(status.st_mode):04o}). "
            f"Run `chmod 700 {path}` if it is nsm's alone. {_another_place(path)}."
        )


def _another_place(path: str) -> str:
    """Advice on how to have nsm use another directory than this one of nsm's."""
    for variable, directory in (
        ("XDG_STATE_HOME", state_dir),
        ("XDG_DATA_HOME", data_dir),
        ("XDG_CACHE_HOME", cache_dir),
    ):
        if os.path.commonpath((path, directory())) == directory():
            return f"To use another place, set {variable} to a directory that you can write to"
    return "To use another place, set NSM_SOCKET to a path in a directory that is yours alone"


def replace_file(
    path: str,
    text: bytes,
    *,
    sync: bool = False,
    keep_mode: bool = False,
    check: Callable[[], object] = lambda: None,
) -> None:
    """Replace a file, whole or not at all. Several may do so at once.

    Args:
        sync: have it on disk first.
        keep_mode: the new one has the mode and the owner of the old one; else it is the user's
            alone.
        check: is called when all is ready; with an error of it, the old file stays.

    Raises:
        OSError: it can't be written; the old one is as it was.
    """
    # One name: a process that is killed here leaves no more than one behind.
    new = f"{path}.nsm-new"
    with open(_locked(new), "wb") as file:
        try:
            fd = file.fileno()
            os.fchmod(fd, 0o600)
            if keep_mode:
                with suppress(FileNotFoundError):
                    status = os.stat(path)
                    with suppress(PermissionError):
                        os.fchown(fd, status.st_uid, status.st_gid)
                    os.fchmod(fd, stat.S_IMODE(status.st_mode))
            os.ftruncate(fd, 0)
            file.write(text)
            file.flush()
            if sync:
                os.fsync(fd)
            check()
            os.replace(new, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(new)
            raise


def _locked(path: str) -> int:
    """Make a file for this writer alone; returns a descriptor, which holds the lock."""
    # Where agents in boxes write, too, there may be a FIFO, for whose reader nobody is to wait.
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        fd = os.open(path, flags, 0o600)
        try:
            with suppress(OSError):  # some network file systems have no locks
                fcntl.flock(fd, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False)):
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # another writer has renamed it


def open_linkless(path: str) -> int:
    """Open what lies at a path with no symbolic link on it; returns a descriptor (O_PATH).

    Name by name: openat2(2) with RESOLVE_NO_SYMLINKS would be one call, for which Python has no
    function.

    Args:
        path: absolute and normalised.

    Raises:
        OSError: it is not there (ENOENT), or there is a link on the way (ELOOP); `filename` is
            the whole path.
    """
    fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in filter(None, path.split("/")):
            deeper = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = deeper
            # With O_PATH, O_NOFOLLOW opens a link itself (open(2)).
            if stat.S_ISLNK(os.fstat(fd).st_mode):
                why = "a symbolic link has come on the way to it"
                raise OSError(errno.ELOOP, why)  # noqa: TRY301 - gets the path, as all
    except OSError as error:
        os.close(fd)
        raise OSError(error.errno, error.strerror, path) from error
    return fd


_MAX_LINKS = 40
"""Links on the way to a file that the kernel follows (path_resolution(7))."""


def follow_links(path: str, start: str = "/") -> tuple[str, dict[str, str]]:
    """Follow all symbolic links on the way to a path, and at its end.

    Args:
        path: absolute.
        start: a directory that begins the path, without links on the way to it.

    Returns:
        The path without links, which need not exist; the links, where they are without others on
        the way, and what they say.
    """
    done, left = start, path[len(start) :].split("/")[::-1]
    links: dict[str, str] = {}
    while left:
        name = left.pop()
        if name in ("", ".", ".."):
            done = os.path.dirname(done) if name == ".." else done
            continue
        step = os.path.join(done, name)
        try:
            says = os.readlink(step) if len(links) < _MAX_LINKS else ""
        except (OSError, ValueError):
            says = ""
        if not says:
            done = step
            continue
        if step in links:
            return step, links  # it leads to itself
        links[step] = says
        done = "/" if says.startswith("/") else done
        left += says.split("/")[::-1]
    return done, links


def which(name: str, search_path: str, *writable: str) -> str | None:
    """Find a program that is to run on the host, outside of any jail.

    Places that jailed code can write to are passed over: a program that it has put there would run
    as the user. That is a project, which a PATH with `node_modules/.bin` in it reaches.

    Args:
        search_path: PATH.
        writable: directories in which jailed code can write, all links followed.

    Returns:
        Its path, links not followed; None where there is none.
    """
    for folder in search_path.split(":"):
        if not folder.startswith("/"):
            continue  # relative to the working directory
        path = os.path.join(folder, name)
        try:
            if not (stat.S_ISREG(os.stat(path).st_mode) and os.access(path, os.X_OK)):
                continue
        except (OSError, ValueError):
            continue
        real = (os.path.realpath(folder), os.path.realpath(path))
        if not any(
            os.path.commonpath((each, place)) == place for each in real for place in writable
        ):
            return path
    return None


def _xdg(name: str) -> str | None:
    """A variable of the XDG Base Directory Specification, which says to ignore relative paths."""
    path = os.environ.get(name, "")
    return path if os.path.isabs(path) else None


def _is_ours(path: str) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
