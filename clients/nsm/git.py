"""git, run as the user on repositories that others may have written.

The configuration of a repository names programs that git runs (monitors, hooks, filters, helpers of
remotes), and code in a jail may have written it, or the person from whom it was cloned. So git is
started here only, and for two things: to print configuration, for which it runs nothing, and to
list files, for which it gets a git directory of ours: the index, the objects and the list of what
is ignored are the repository's, and the configuration is not. A program that starts git by itself
gets a copy of the working tree with such a git directory.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nsm import below, paths
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping, Sequence
    from subprocess import CompletedProcess

LIST_S = 120.0
"""Time limit of a list of files: a FIFO in the place of a file would keep git waiting for ever."""

IDENTITY_S = 5.0
"""Time limit for git to read its configuration: a FIFO that it includes would block it for ever."""

MAX_POINTER_BYTES = 64 * 1024
"""Largest `.git` file, `commondir` or `gitdir`: a path and a few bytes."""

_PASSED_ON = (
    *("HOME", "XDG_CONFIG_HOME"),
    *("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"),
)
_NOTHING_ELSE = {
    "LC_ALL": "C",
    "PATH": "/usr/bin:/bin",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "/bin/false",
    "GIT_SSH_COMMAND": "/bin/false",
    "GIT_EDITOR": "/bin/false",
    "GIT_PAGER": "cat",
}
"""Variables by which git asks nobody, fetches nothing and writes nothing (git(1))."""

_NO_PROGRAMS = (
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"),
    *("-c", "core.untrackedCache=false"),
)

_NOT_IGNORED = ("--cached", "--others", "--exclude-standard")

_HASHES = ("sha1", "sha256")
"""Kinds of hashes that a repository may have (extensions.objectFormat)."""

_OF_FILES = ("core.excludesfile", "core.ignorecase", "core.precomposeunicode")
"""Settings of a repository about its files; none names a program."""


class GitError(Exception):
    """git cannot say what is in a repository; the message is a clause with its reason."""


class _Repository(NamedTuple):
    """A repository as it lies on the disk: its working tree, the git directory of that, and the one
    that it shares with other working trees, which may be the same.
    """

    top: str
    own: str
    common: str


def run(
    git: str,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    *,
    timeout_s: float,
    before: Sequence[str] = (),
    directory: str = "/",
    data: bytes = b"",
) -> CompletedProcess[bytes]:
    """Run git, which runs no other program.

    Args:
        arguments: without a repository, or with `--git-dir`.
        variables: the user's; those by which git finds the user's configuration are passed on.
        before: words before the program: a jail, and its arguments.
        directory: the working directory. git must not look for a repository from there by itself.

    Raises:
        OSError, ValueError: it cannot be started.
        subprocess.TimeoutExpired: it was ended after `timeout_s`.
    """
    import subprocess  # noqa: PLC0415 - 6 ms, not needed where there is no git

    passed_on = {name: variables[name] for name in _PASSED_ON if name in variables}
    return subprocess.run(
        [*before, git, *_NO_PROGRAMS, *arguments],
        input=data,
        capture_output=True,
        cwd=directory,
        env=passed_on | _NOTHING_ELSE,
        timeout=timeout_s,
        check=False,
    )


def reason(done: CompletedProcess[bytes]) -> str:
    """Return why git failed, in its words: one line for people."""
    said = done.stderr.decode(errors="replace").strip().splitlines()
    text = said[-1] if said else f"git ended with {done.returncode}"
    return "".join(c if c.isprintable() else "\ufffd" for c in text)[:300]


def identity(git: str, variables: Mapping[str, str], git_directory: str = "") -> dict[str, str]:
    """Read `user.name` and `user.email`, as far as the user's or the system's configuration has
    them. With a git directory, `includeIf.gitdir` of the user's applies.
    """
    from subprocess import TimeoutExpired  # noqa: PLC0415 - see `run`

    found: dict[str, str] = {}
    for scope in ("--system", "--global"):
        asked = ["config", scope, "--includes", "-z", "--get-regexp", r"^user\.(name|email)$"]
        # Without the repository if that is what is broken.
        for place in ([f"--git-dir={git_directory}"], []) if git_directory else ([],):
            try:
                done = run(git, [*place, *asked], variables, timeout_s=IDENTITY_S)
            except (OSError, ValueError, TimeoutExpired):
                break
            if done.returncode in (0, 1):  # 1: there is none, or no such file (git-config(1))
                entries = os.fsdecode(done.stdout).split("\0")
                said = (entry.partition("\n") for entry in entries)
                found |= {key: value for key, _, value in said if value}
                break
    return found


def jail_settings(identity: Mapping[str, str]) -> str:
    """Return all of the user's configuration that a jail has: nothing else, no credential helper.

    Files of any owner are trusted: code there could change what git does anyway.
    """
    user = "".join(
        f"\t{key.removeprefix('user.')} = {_quoted(value)}\n" for key, value in identity.items()
    )
    head = f"[user]\n{user}" if user else ""
    return f"{head}[safe]\n\tdirectory = *\n"


def _quoted(value: str) -> str:
    """A value as git's configuration spells any text (git-config(1), Syntax)."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\t", "\\t").replace("\b", "\\b") + '"'


def list_files(directory: str, variables: Mapping[str, str]) -> list[str] | None:
    """List the files below a directory that git does not ignore, relative to it. A `GitError` if
    git cannot tell.

    Returns:
        The names as git has them: nothing need be there, and a link may be on the way. None where
        the directory is part of no repository.
    """
    import tempfile  # noqa: PLC0415 - 6 ms, too

    directory = os.path.realpath(directory)
    found = _repository(directory)
    if found is None:
        return None
    git = _program(found, variables)
    with (
        _explained("git could not be asked"),
        tempfile.TemporaryDirectory(prefix="nsm-git-") as ours,
    ):
        return _listed(git, found, directory, variables, ours, *_NOT_IGNORED)


def copy_tracked(directory: str, target: str, variables: Mapping[str, str]) -> str | None:
    """Copy the working tree of a directory's repository, as far as git tracks it. A `GitError` if
    it cannot be copied.

    Args:
        target: directory for it, empty.

    Returns:
        The directory's place in the copy; None, and no copy, where it is part of no repository.
    """
    directory = os.path.realpath(directory)
    found = _repository(directory)
    if found is None:
        return None
    git = _program(found, variables)
    with _explained(f"{found.top} cannot be copied"):
        ours = os.path.join(target, ".git")
        os.mkdir(ours)
        _copy(found.top, target, _listed(git, found, found.top, variables, ours, "--cached"))
    return os.path.normpath(os.path.join(target, os.path.relpath(directory, found.top)))


@contextmanager
def _explained(failure: str) -> Generator[None]:
    """Raise `GitError` for errors in the block; of the system, with what failed."""
    from subprocess import TimeoutExpired  # noqa: PLC0415 - see `run`

    try:
        yield
    except TimeoutExpired as error:
        raise GitError(f"git took longer than {error.timeout:g} s") from error
    except (OSError, ValueError) as error:
        raise GitError(f"{failure}: {error}") from error


def _copy(top: str, target: str, names: Iterable[str]) -> None:
    """Copy files and links; leave out what is not there, and what is behind a link."""
    import shutil  # noqa: PLC0415 - 5 ms

    theirs, ours = os.open(top, below.DIRECTORY), os.open(target, below.DIRECTORY)
    try:
        for name in names:
            status = below.look(theirs, name, mounts=True)
            if status is None or not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                continue
            if "/" in name:
                below.make_directories(ours, os.path.dirname(name))
            if stat.S_ISLNK(status.st_mode):
                with below.parent_of(ours, name) as (parent, link):
                    os.symlink(below.read_link(theirs, name, mounts=True), link, dir_fd=parent)
                continue
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            mode = 0o700 if status.st_mode & 0o100 else 0o600
            with (
                open(below.open_file(theirs, name, mounts=True), "rb") as source,
                open(below.open_below(ours, name, flags, mode), "wb") as file,
            ):
                shutil.copyfileobj(source, file)
    finally:
        os.close(theirs)
        os.close(ours)


def _program(found: _Repository, variables: Mapping[str, str]) -> str:
    git = paths.which("git", variables.get("PATH", ""), found.top)
    if git is None:
        raise GitError(f"{found.top} is a git repository, and there is no git on PATH")
    return git


def _listed(
    git: str,
    found: _Repository,
    directory: str,
    variables: Mapping[str, str],
    ours: str,
    *options: str,
) -> list[str]:
    """List files by a git directory of ours, which is made in an empty directory."""
    wanted = "|".join((*_OF_FILES, "extensions.objectformat"))
    asked = run(
        git,
        [f"--git-dir={found.own}", "config", "-z", "--get-regexp", f"^({wanted})$"],
        variables,
        timeout_s=LIST_S,
    )
    if asked.returncode not in (0, 1):  # 1: there is nothing of that (git-config(1))
        raise GitError(f"git says: {reason(asked)}")
    entries = (entry.partition("\n") for entry in os.fsdecode(asked.stdout).split("\0") if entry)
    said = {key: value for key, _, value in entries}  # the last one counts
    hashes = said.pop("extensions.objectformat", _HASHES[0])
    if hashes not in _HASHES:
        raise GitError(f"it has hashes of an unknown kind, {hashes!r}")
    _fill(ours, found, hashes)
    done = run(
        git,
        [
            *(word for key, value in said.items() for word in ("-c", f"{key}={value}")),
            *(f"--git-dir={ours}", f"--work-tree={found.top}", "ls-files", "-z", *options),
        ],
        variables,
        timeout_s=LIST_S,
        directory=directory,
    )
    if done.returncode:
        raise GitError(f"git says: {reason(done)}")
    # An unmerged file is listed once for each side of the conflict.
    names = list(dict.fromkeys(os.fsdecode(name) for name in done.stdout.split(b"\0") if name))
    for name in names:
        if name.startswith("/") or {"..", ".git"} & {*name.split("/")}:
            raise GitError(f"its index has {name!r}, which lies outside")
    return names


def _fill(ours: str, found: _Repository, hashes: str) -> None:
    """Fill a git directory of ours with the data of the repository's, and none of its settings."""
    import shutil  # noqa: PLC0415 - 5 ms

    text = (
        "[core]\n\trepositoryformatversion = 1\n\tbare = false\n"
        f"[extensions]\n\tobjectFormat = {hashes}\n"
    )
    for name, content in (("HEAD", "ref: refs/heads/none\n"), ("config", text)):
        with open(os.path.join(ours, name), "x", encoding="ascii") as file:
            file.write(content)
    for name in ("refs", "info"):
        os.mkdir(os.path.join(ours, name))
    for name in os.listdir(found.own):
        if name == "index" or name.startswith("sharedindex."):  # an index may be split
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(os.path.join(found.own, name), flags), "rb") as theirs:
                if not stat.S_ISREG(os.fstat(theirs.fileno()).st_mode):
                    raise GitError(f"its {name} is not a file")
                with open(os.path.join(ours, name), "xb") as copy:
                    shutil.copyfileobj(theirs, copy)
    for name in ("objects", "info/exclude"):
        os.symlink(os.path.join(found.common, name), os.path.join(ours, name))


def _repository(directory: str) -> _Repository | None:
    """Find the repository of a directory, in the file system of that, as git does.

    Raises:
        GitError: one is broken. git would go on further up, or say that there is none.
    """
    device = os.stat(directory).st_dev
    top: str = directory
    while os.stat(top).st_dev == device:
        dot_git = os.path.join(top, ".git")
        if os.path.lexists(dot_git):
            named = git_file(dot_git) if os.path.isfile(dot_git) else ""
            own = os.path.realpath(os.path.join(top, named or ".git"))
            pointed = pointer(os.path.join(own, "commondir"))
            common = os.path.realpath(os.path.join(own, pointed or ""))
            parts = map(os.path.isdir, (f"{common}/objects", f"{common}/refs"))
            if named is None or not os.path.lexists(f"{own}/HEAD") or not all(parts):
                raise GitError(f"{dot_git} is not a git directory, and names none")
            return _Repository(top, own, common)
        if top == "/":
            return None
        top = os.path.dirname(top)
    return None


def shared_directory(worktree: str) -> tuple[str, str] | None:
    """Find the git directory that a linked worktree shares with its repository.

    Anybody may have written a `.git` file. So it is believed only if the directory that it names
    says, too, that it belongs to this worktree.

    Args:
        worktree: absolute, all links followed.

    Returns:
        The real path, and the path by which the worktree names it, which may be relative to it;
        None if it is no such worktree.
    """
    named = git_file(os.path.join(worktree, ".git"))
    if named is None:
        return None
    own = os.path.realpath(os.path.join(worktree, named))
    common = common_directory(own)
    place = os.path.dirname(os.path.dirname(os.path.normpath(named)))
    if (
        own == common
        or not is_repository(own, whole=False)
        or not is_repository(common)
        or why_no_worktree(worktree, own, common)
        or os.path.realpath(os.path.join(worktree, place)) != common
    ):
        return None
    return common, place


def why_no_worktree(worktree: str, own: str, common: str) -> str | None:
    """Explain why a git directory is not that of a linked worktree; None if it is.

    `common` is what it would share with others. All paths are absolute, with links followed.
    """
    if own != os.path.join(common, "worktrees", os.path.basename(own)):
        return f"it is not a worktree of {common!r}"
    back = pointer(os.path.join(own, "gitdir"))
    if back is None or resolved(own, back) != os.path.join(worktree, ".git"):
        return "it is that of another working directory"
    return None


def common_directory(own: str) -> str:
    """Real path of what a git directory shares with others; itself if it shares nothing."""
    pointed = pointer(os.path.join(own, "commondir"))
    return own if pointed is None else os.path.realpath(os.path.join(own, pointed))


def resolved(base: str, path: str) -> str:
    """Real path of what a file in a git directory names; the last component stays as it is."""
    whole = os.path.normpath(os.path.join(base, path))
    return os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))


def is_repository(path: str, *, whole: bool = True) -> bool:
    """Return whether a directory looks like git's own: `HEAD`, and, with `whole`, the shared parts
    of worktrees."""
    needed = (("HEAD", stat.S_ISREG), ("objects", stat.S_ISDIR), ("refs", stat.S_ISDIR))
    try:
        return all(
            is_kind(os.lstat(os.path.join(path, name)).st_mode)
            for name, is_kind in (needed if whole else needed[:1])
        )
    except (OSError, ValueError):
        return False


def git_file(path: str) -> str | None:
    """Read the path in a `.git` file; None where there is no such file."""
    return _pointed(path, b"gitdir:")


def pointer(path: str) -> str | None:
    """Read the path in a file of one line; None where there is no such file."""
    return _pointed(path, b"")


def _pointed(path: str, prefix: bytes) -> str | None:
    data = small_file(path)
    if data is None or not data.startswith(prefix):
        return None
    text = data[len(prefix) :].strip(b" \t\r\n") if prefix else data.rstrip(b"\r\n")
    return os.fsdecode(text) if text and b"\0" not in text else None


def small_file(path: str, limit: int = MAX_POINTER_BYTES) -> bytes | None:
    """Read a regular file that others may have written; None if it is longer, or something else."""
    try:
        data = below.read_file(path, limit + 1)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        return None
    return data if len(data) <= limit else None
