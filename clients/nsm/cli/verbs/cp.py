"""`nsm cp`: files to and from sessions."""

from __future__ import annotations

import codecs
import os
import posixpath
import signal
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli import options as cli
from nsm.cli.render import formats
from nsm.cli.streams.escapes import Harmless
from nsm.client import local_files
from nsm.client.blocking import Client
from nsm.client.local_files import source, told, write_all
from nsm.wire.errors import BadRequestError, DisconnectedError, FileError, NsmError
from nsm.wire.tuples import NamedTuple

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from types import FrameType
    from typing import Self

    from nsm.client.session_files import SessionFiles
    from nsm.wire.files import FileInfo, TreeReport

_EPILOG = """\
SESSION is an id or a name. PATH is absolute or below the session's /workspace, which `SESSION:`
alone means. `-` is standard input or output. A target that is a directory, or ends in `/`, takes
files under their own names. A local name with a colon is written `./a:b`.

A file appears whole at its target, or not at all. Permissions are kept, without set-user-ID; on
this machine your umask applies, and a replaced file keeps its own. Copies work while code runs in
the session. A symbolic link here is neither read nor written through unless you say --follow. The
largest file is `[session] max_file_mb`.

A directory is copied with all that is in it, into TARGET if that is a directory, else as TARGET.
Links become links in a session, and are left out on the way here; sockets, pipes and devices are
never copied. Each failure is reported on a line of its own, and the rest is copied. What cannot fit
into the session is refused before anything is written.

examples:
  nsm cp data.csv model.py work:
  nsm cp work:plot.png .
  nsm cp src work:
  nsm cp work:plots .
  nsm cp work:/tmp/log.txt - | less
"""


@cli.verb(
    "cp",
    "Copy files to and from live sessions.",
    _EPILOG,
    cli.operand("SOURCE ...", "SESSION:PATH, or a file or directory", dest="sources"),
    cli.operand("TARGET", "the other: a file, or SESSION:PATH"),
    cli.flag("--follow", "read and write through symbolic links here"),
)
def _cp(options: Namespace) -> int:
    try:
        copies = plan([*options.sources, options.target])
    except BadRequestError as error:
        raise cli.UsageError(f"{error.message}\n{error.hint}") from error
    # Without these handlers a file in the making would be left where files need a name.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # not under nohup(1)
            signal.signal(number, _end)
    failed = False
    with Client(autostart=False) as client:
        remotes = [c.target if isinstance(c, Upload) else c.source for c in copies]
        for session in dict.fromkeys(remote.session for remote in remotes):
            connection.tell(client, session)
        for copy in copies:
            try:
                failed |= not _copy(client, copy, follow=options.follow)
            except DisconnectedError:
                raise
            except NsmError as error:
                failed = True
                terminal.report(error)
    return cli.EXIT_FAILED if failed else cli.EXIT_OK


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _copy(client: Client, copy: Upload | Download, *, follow: bool) -> bool:
    """Copy a file or a directory; returns whether all of it was copied."""
    match copy:
        case Upload(source=Local(path="-")):
            _send_input(client, copy)
            return True
        case Upload():
            return _upload(client, copy, follow=follow)
        case Download(target=Local(path="-")):
            _print(client, copy)
            return True
        case Download():
            return _download(client, copy, follow=follow)


def _send_input(client: Client, copy: Upload) -> None:
    with source("-") as opened, ProgressLine(str(copy.source)) as progress:
        moved = 0

        def read(count: int) -> bytes:
            nonlocal moved
            data = opened.read(count)
            moved += len(data)
            progress.show(moved, None)
            return data

        client.files(copy.target.session).write_from(copy.target.path, read)


def _upload(client: Client, copy: Upload, *, follow: bool) -> bool:
    files = client.files(copy.target.session)
    local, path = copy.source.path, copy.target.path or "."
    inside = posixpath.join(path, base_name(local))
    with ProgressLine(str(copy.source)) as progress:
        upload = partial(files.upload, local, follow=follow, on_progress=progress.show)
        if local_files.is_directory(local, follow=follow):
            if not copy.named and _is_directory(files, path):
                path = inside
            return _tell(copy.source, upload(path))
        try:
            upload(path)
        except FileError as error:
            # What a pipe has given cannot be sent once more.
            is_directory = error.data.get("errno") == "EISDIR"
            if copy.named or not is_directory or not os.path.isfile(local):
                raise
            upload(inside)
    return True


def _is_directory(files: SessionFiles, path: str) -> bool:
    try:
        return files.stat(path).kind == "directory"
    except FileError as error:
        if error.data.get("errno") != "ENOENT":
            raise
        return False


def _download(client: Client, copy: Download, *, follow: bool) -> bool:
    files, local = client.files(copy.source.session), copy.target.path
    into = copy.into or os.path.isdir(local)
    with ProgressLine(str(copy.source)) as progress:
        report = files.download(
            copy.source.path or ".", local, into=into, follow=follow, on_progress=progress.show
        )
    return _tell(copy.source, report)


def _tell(source: Local | Remote, report: TreeReport) -> bool:
    """Report each failure, and how much a rule left out; returns whether nothing failed."""
    by_rule = 0
    name = formats.visible(str(source))
    for skipped in report.skipped:
        if skipped.by_rule:
            by_rule += 1
        else:
            terminal.note(f"{name}: {formats.visible(f'{skipped.path}: {skipped.why}')}")
    if more := report.left_out - len(report.skipped):
        terminal.note(f"{name}: {more} more were left out")
    if by_rule:
        terminal.note(f"{name}: links and special files were left out: {by_rule}")
    return by_rule == report.left_out


def _print(client: Client, copy: Download) -> None:
    stdout = sys.stdout.fileno()
    if not sys.stdout.isatty():
        moved, total = 0, 0
        with ProgressLine(str(copy.source)) as progress:

            def on_open(info: FileInfo) -> None:
                nonlocal total
                total = info.size

            def write(data: bytes) -> None:
                nonlocal moved
                with told("standard output", "written"):
                    write_all(stdout, data)
                moved += len(data)
                progress.show(moved, total)

            _get(client, copy, write, on_open)
        return
    # What is in the file may have been chosen by a model, and a terminal obeys what it is sent.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    harmless = Harmless()
    _get(
        client, copy, lambda data: write_all(stdout, _encoded(harmless.take(decoder.decode(data))))
    )
    rest = harmless.take(decoder.decode(b"", final=True)) + harmless.end()
    write_all(stdout, _encoded(rest))


def _get(
    client: Client,
    copy: Download,
    write: Callable[[bytes], object],
    on_open: Callable[[FileInfo], object] | None = None,
) -> FileInfo:
    try:
        files = client.files(copy.source.session)
        return files.read_to(copy.source.path, write, on_open=on_open)
    except FileError as error:
        if error.data.get("errno") == "EISDIR":
            raise directory_there(str(copy.source)) from error
        raise


def _encoded(text: str) -> bytes:
    return text.encode(sys.stdout.encoding, "backslashreplace")


_FIRST_S = 1.0
"""Nobody waits for what takes less."""

_EVERY_S = 0.2
_NAME_CHARS = 40


class ProgressLine:
    """A line on standard error that comes late, changes, and goes; none if that is no terminal."""

    def __init__(self, name: str) -> None:
        self._name = formats.visible(name)[-_NAME_CHARS:]
        self._wanted = sys.stderr.isatty()
        self._begun_s = time.monotonic()
        self._next_s = self._begun_s + _FIRST_S
        self._shown = False

    def show(self, done_bytes: int, total_bytes: int | None) -> None:
        """Show how many bytes were copied, of all if that is known; not each time."""
        now_s = time.monotonic()
        if self._wanted and now_s >= self._next_s:
            self._next_s = now_s + _EVERY_S
            self._shown = True
            terminal.draw(progress(self._name, done_bytes, total_bytes, now_s - self._begun_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Take the line away."""
        if self._shown:
            terminal.draw("")


def progress(name: str, done_bytes: int, total_bytes: int | None, took_s: float) -> str:
    """Make the line to show, without moving the cursor: how much, how fast, and the time left."""
    rate = done_bytes / took_s if took_s > 0 else 0.0
    speed = f"{formats.memory(int(rate))}/s"
    if not total_bytes:
        return f"{name}  {formats.memory(done_bytes)}  {speed}"
    share = min(100, done_bytes * 100 // total_bytes)
    shown = f"{name}  {formats.memory(done_bytes)} of {formats.memory(total_bytes)}  {share} %"
    if not rate:
        return shown
    return f"{shown}  {speed}  {formats.duration(max(0, total_bytes - done_bytes) / rate)} left"


# Both sides: what the operands mean.


class Remote(NamedTuple):
    """A file or directory of a session; the path is absolute, or relative to the workspace, which
    is meant where it is empty."""

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
    id, too."""
    if not operand:
        raise BadRequestError("an empty name is not a file", hint="`nsm cp --help` has examples.")
    session, colon, path = operand.partition(":")
    return Remote(session, path) if colon and session and "/" not in session else Local(operand)


def plan(given: list[str]) -> list[Upload | Download]:
    """The copies that two or more operands ask for, the last being the target; an error says why
    there is nothing that they could mean."""
    *first, last = given
    sources, target = [place(source) for source in first], place(last)
    several = len(sources) > 1
    if isinstance(target, Remote):
        copies = [_planned_upload(source, target, several=several) for source in sources]
        _check_distinct([copy.target.path for copy in copies])
        _check_texts([copy.target for copy in copies])
        return list(copies)
    downloads = [_planned_download(source, target, several=several) for source in sources]
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


def _planned_upload(source: Remote | Local, target: Remote, *, several: bool) -> Upload:
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


def _planned_download(source: Remote | Local, target: Local, *, several: bool) -> Download:
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
"""Advice on how to get a directory out of a session."""
