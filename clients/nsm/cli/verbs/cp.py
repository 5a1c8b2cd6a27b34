"""`nsm cp`: files to and from sessions."""

from __future__ import annotations

import codecs
import os
import signal
import sys
from typing import TYPE_CHECKING

from nsm.cli import targets, terminal
from nsm.cli.files import operands, trees
from nsm.cli.files.local_files import LocalFileError, Target, source, write_all
from nsm.cli.files.operands import Download, Local, Upload
from nsm.cli.files.progress import ProgressLine
from nsm.cli.options import EXIT_FAILED, EXIT_OK, Parser
from nsm.cli.streams.escapes import Harmless
from nsm.client.blocking import Client
from nsm.wire.errors import BadRequestError, DisconnectedError, FileError, NsmError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from nsm.wire.sessions import FileInfo

_EPILOG = """\
SESSION is an id or a name. PATH is absolute or below the session's /workspace, which `SESSION:`
alone means. `-` is standard input or output. A target that is a directory, or ends in `/`, takes
files under their own names. A local name with a colon is written `./a:b`.

A file appears whole at its target, or not at all. Permissions are kept, but those to run as
another user; here less your umask, and a file that is replaced keeps its own. Copies work while
code runs in the session. A symbolic link here is read through, and not written through unless you
say --follow. The largest file is `[session] max_file_mb`.

A directory is copied with all files and directories in it, into TARGET if that is a directory, else
as TARGET. Links and special files in it are left out. What can't be copied is said, a line each,
and the rest is copied. What cannot fit is refused before anything is written.

examples:
  nsm cp data.csv model.py work:
  nsm cp work:plot.png .
  nsm cp src work:
  nsm cp work:plots .
  nsm cp work:/tmp/log.txt - | less
"""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("cp", "Copy files to and from live sessions.", _EPILOG)
    parser.add_argument(
        "sources", nargs="+", metavar="SOURCE", help="SESSION:PATH, or a file or directory"
    )
    parser.add_argument("target", metavar="TARGET", help="the other: a file, or SESSION:PATH")
    parser.add_argument(
        "--follow", action="store_true", help="write through a symbolic link at TARGET"
    )
    return parser


def main(arguments: list[str]) -> int:
    """Copy."""
    verb = parser()
    options = verb.parse_args(arguments)
    try:
        copies = operands.plan([*options.sources, options.target])
    except BadRequestError as error:
        verb.error(f"{error.message}\n{error.hint}")
    # Without these handlers a file in the making would be left where files need a name.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # not under nohup(1)
            signal.signal(number, _end)
    failed = False
    with Client(autostart=False) as client:
        remotes = [c.target if isinstance(c, Upload) else c.source for c in copies]
        for session in dict.fromkeys(remote.session for remote in remotes):
            targets.tell(client, session)
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
        case Upload() if os.path.isdir(copy.source.path) and not copy.source.is_standard:
            return trees.upload(client, copy)
        case Upload():
            _upload(client, copy)
        case Download(target=Local(path="-")):
            _print(client, copy)
        case Download() if copy.source.is_directory:
            return trees.download(client, copy, follow=follow)
        case Download():
            try:
                _download(client, copy, follow=follow)
            except FileError as error:
                if error.data.get("errno") != "EISDIR":  # there, or here
                    raise
                try:
                    return trees.download(client, copy, follow=follow)
                except FileError as other:
                    raise error if other.data.get("errno") == "ENOTDIR" else other from None
    return True


def _upload(client: Client, copy: Upload) -> None:
    with source(copy.source.path) as opened:
        progress = ProgressLine(str(copy.source), opened.size)

        has_begun = False

        def read(count: int) -> bytes:
            nonlocal has_begun
            has_begun = True
            data = opened.read(count)
            progress.add(len(data))
            return data

        def put(path: str) -> FileInfo:
            return client.put_file(
                copy.target.session,
                path,
                read,
                permissions=opened.permissions,
                size=opened.size,
            )

        try:
            put(copy.target.path)
        except FileError as error:
            name = os.path.basename(copy.source.path)
            is_directory = error.data.get("errno") == "EISDIR"
            # What has been read cannot be sent once more.
            if has_begun or copy.source.is_standard or not is_directory:
                raise
            put(copy.target.within(name).path)
        finally:
            progress.end()


def _download(client: Client, copy: Download, *, follow: bool) -> None:
    path = copy.target.path
    into = copy.into or os.path.isdir(path)
    if into:
        path = os.path.join(path, operands.file_name(copy.source))
    progress = ProgressLine(str(copy.source), None)
    with Target(path, follow=follow, into=into) as target:

        def write(data: bytes) -> None:
            target.write(data)
            progress.add(len(data))

        def on_open(info: FileInfo) -> None:
            target.expect(info.size)
            progress.expect(info.size)

        try:
            info = client.get_file(copy.source.session, copy.source.path, write, on_open=on_open)
        finally:
            progress.end()
        target.keep(info.permissions)


def _print(client: Client, copy: Download) -> None:
    stdout = sys.stdout.fileno()
    if not sys.stdout.isatty():
        progress = ProgressLine(str(copy.source), None)

        def write(data: bytes) -> None:
            try:
                write_all(stdout, data)
            except BrokenPipeError:
                raise
            except OSError as error:
                raise LocalFileError("standard output", error, "written") from error
            progress.add(len(data))

        try:
            _get(client, copy, write, on_open=lambda info: progress.expect(info.size))
        finally:
            progress.end()
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
        return client.get_file(copy.source.session, copy.source.path, write, on_open=on_open)
    except FileError as error:
        if error.data.get("errno") == "EISDIR":
            raise operands.directory_there(str(copy.source)) from error
        raise


def _encoded(text: str) -> bytes:
    return text.encode(sys.stdout.encoding, "backslashreplace")
