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

from nsm.cli import connection, operands, terminal
from nsm.cli.operands import Download, Local, Upload
from nsm.cli.options import EXIT_FAILED, EXIT_OK, UsageError, flag, operand, verb
from nsm.cli.render import formats
from nsm.cli.streams.escapes import Harmless
from nsm.client import local_files
from nsm.client.blocking import Client
from nsm.client.local_files import source, told, write_all
from nsm.wire.errors import BadRequestError, DisconnectedError, FileError, NsmError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable
    from types import FrameType
    from typing import Self

    from nsm.cli.operands import Remote
    from nsm.client.session_files import SessionFiles
    from nsm.wire.files import FileInfo, TreeReport

_EPILOG = """\
SESSION is an id or a name. PATH is absolute or below the session's /workspace, which `SESSION:`
alone means. `-` is standard input or output. A target that is a directory, or ends in `/`, takes
files under their own names. A local name with a colon is written `./a:b`.

A file appears whole at its target, or not at all. Permissions are kept, but those to run as
another user; here less your umask, and a file that is replaced keeps its own. Copies work while
code runs in the session. A symbolic link here is neither read nor written through unless you say
--follow. The largest file is `[session] max_file_mb`.

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


@verb(
    "cp",
    "Copy files to and from live sessions.",
    _EPILOG,
    operand("SOURCE ...", "SESSION:PATH, or a file or directory", dest="sources"),
    operand("TARGET", "the other: a file, or SESSION:PATH"),
    flag("--follow", "read and write through symbolic links here"),
)
def _cp(options: Namespace) -> int:
    try:
        copies = operands.plan([*options.sources, options.target])
    except BadRequestError as error:
        raise UsageError(f"{error.message}\n{error.hint}") from error
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
    return EXIT_FAILED if failed else EXIT_OK


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
    inside = posixpath.join(path, operands.base_name(local))
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
            raise operands.directory_there(str(copy.source)) from error
        raise


def _encoded(text: str) -> bytes:
    return text.encode(sys.stdout.encoding, "backslashreplace")


_FIRST_S = 1.0
"""Nobody waits for what takes less."""

_EVERY_S = 0.2
_NAME_CHARS = 40


class ProgressLine:
    """A line on standard error that comes late, changes, and goes; none if that is no terminal.

    Args:
        name: name of the copied file.
    """

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
