"""The two sides of `nsm cp`: what its operands mean. Pure."""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from nsm.wire.errors import BadRequestError


class Remote(NamedTuple):
    """A file or directory of a session.

    Attributes:
        session: an id or a name.
        path: absolute, or relative to the workspace; empty for the workspace.
    """

    session: str
    path: str

    @property
    def is_directory(self) -> bool:
        """True if its spelling says so."""
        return posixpath.basename(self.path) in ("", ".", "..")

    def within(self, name: str) -> Remote:
        """A file of that name in this directory."""
        return self._replace(path=posixpath.join(self.path, name))

    def __str__(self) -> str:
        return f"{self.session}:{self.path}"


class Local(NamedTuple):
    """A file or directory here; ``-`` for standard input or output."""

    path: str

    @property
    def is_standard(self) -> bool:
        """True if it is standard input or output."""
        return self.path == "-"

    def __str__(self) -> str:
        return self.path


class Upload(NamedTuple):
    """One file or directory to copy to a session. `named` means that the target is its own name,
    and not a directory that it may go into."""

    source: Local
    target: Remote
    named: bool = False


class Download(NamedTuple):
    """One file or directory to copy from a session. `into` means that the target is a directory."""

    source: Remote
    target: Local
    into: bool


def place(operand: str) -> Remote | Local:
    """Parse an operand: ``SESSION:PATH`` with no slash before the colon, else a local path.

    That is scp's rule, so ``./a:b`` is a file here. A session whose scope has to be said has an
    id, too.

    Raises:
        BadRequestError: it is empty.
    """
    if not operand:
        raise BadRequestError("an empty name is no file", hint="`nsm cp --help` has examples.")
    session, colon, path = operand.partition(":")
    return Remote(session, path) if colon and session and "/" not in session else Local(operand)


def plan(operands: list[str]) -> list[Upload | Download]:
    """The copies that operands ask for, the last being the target.

    Args:
        operands: at least two.

    Raises:
        BadRequestError: there is nothing that they could mean; the message says why.
    """
    *given, last = operands
    sources, target = [place(source) for source in given], place(last)
    several = len(sources) > 1
    if isinstance(target, Remote):
        copies = [_upload(source, target, several=several) for source in sources]
        _check_distinct([copy.target.path for copy in copies])
        _check_texts([copy.target for copy in copies])
        return list(copies)
    downloads = [_download(source, target, several=several) for source in sources]
    if several:
        _check_distinct([file_name(copy.source) for copy in downloads])
    _check_texts([copy.source for copy in downloads])
    return list(downloads)


def file_name(remote: Remote) -> str:
    """The last component of the path that was asked for: what is made here takes no other name.

    Empty for what has none, such as the workspace: only what is in it is copied.
    """
    return base_name(remote.path)


def base_name(path: str) -> str:
    """The last component of a path; empty where that is no name."""
    name = posixpath.basename(path.rstrip("/"))
    return "" if name in (".", "..") else name


def _upload(source: Remote | Local, target: Remote, *, several: bool) -> Upload:
    if isinstance(source, Remote):
        raise BadRequestError(
            f"both {source} and {target} are in sessions",
            hint=f"Copy through a pipe: nsm cp {_quoted(str(source))} - | "
            f"nsm cp - {_quoted(str(target))}. A local file whose "
            "name has a colon is named like `./a:b`.",
        )
    if not several and not target.is_directory:
        return Upload(source, target)
    name = base_name(source.path)
    if source.is_standard:
        raise BadRequestError(
            "standard input has no name that its copy could take",
            hint=f"Name the file, e.g. {target.within('data')}.",
        )
    return Upload(source, target.within(name) if name else target, named=True)


def _download(source: Remote | Local, target: Local, *, several: bool) -> Download:
    if isinstance(source, Local):
        raise BadRequestError(
            f"neither {source} nor {target} is in a session",
            hint="Name one as SESSION:PATH; `nsm ps` lists the sessions. One of a scope is named "
            "by its id.",
        )
    if source.is_directory and target.is_standard:
        raise directory_there(str(source))
    if several and target.is_standard:
        raise BadRequestError(
            "several files make no one stream", hint="Copy them one by one, or to a directory."
        )
    return Download(source, target, several or target.path.endswith("/"))


def _check_texts(remotes: list[Remote]) -> None:
    for remote in remotes:
        try:
            str(remote).encode()
        except UnicodeEncodeError:  # frames hold text; sent as it is, it would be another name
            raise BadRequestError(
                f"{str(remote)!a} is not UTF-8 text, as names in a session have to be",
                hint="A file here is copied under another name by naming that: SESSION:NAME.",
            ) from None


def _check_distinct(names: list[str]) -> None:
    double = next((name for name in names if name and names.count(name) > 1), None)
    if double is not None:
        raise BadRequestError(
            f"two of the files would become {double!r}", hint="Copy them one by one."
        )


def _quoted(name: str) -> str:
    """A name as a shell takes it: people paste what they are told to do."""
    from shlex import quote  # noqa: PLC0415  # for mistakes only

    return quote(f"./{name}" if name.startswith("-") else name)


def directory_there(operand: str) -> BadRequestError:
    """Error for a session's directory that is to go to standard output."""
    return BadRequestError(f"{operand} is a directory, and no stream", hint=ARCHIVE_IN_SESSION)


ARCHIVE_IN_SESSION = (
    "Make an archive in the session, with `tar -cf files.tar DIR` or Python's "
    "shutil.make_archive('files', 'tar', base_dir='DIR'), and copy that: "
    "nsm cp SESSION:files.tar - | tar -x"
)
"""How to get a directory out of a session."""
