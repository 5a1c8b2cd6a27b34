"""`nsm run`: run code, and be its terminal."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
import termios
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm import paths
from nsm.cli import options as cli
from nsm.cli import terminal
from nsm.cli.render import formats
from nsm.cli.render.results import Display, Folder, display, exit_code, run_notes
from nsm.cli.streams.live_output import Live
from nsm.client.blocking import Client
from nsm.client.events import output_of, text_of
from nsm.client.local_files import open_input
from nsm.client.places import (
    DEFAULT,
    NO_PROJECT,
    bring_project,
    checked_code,
    place_of,
    project_of,
    why_no_project,
)
from nsm.client.retry import RECONNECTED
from nsm.wire import code as wire_code
from nsm.wire.code import RunOptions, RunResult, run
from nsm.wire.errors import BadProjectError, BadRequestError, NsmError
from nsm.wire.frames import MAX_FRAME_BYTES
from nsm.wire.fresh import run_fresh
from nsm.wire.messages import read

if TYPE_CHECKING:
    from argparse import Namespace

    from nsm.cli.options import Parser
    from nsm.client.places import Project
    from nsm.wire.messages import Event

_EPILOG = """\
Standard output and standard error are the code's own. Displayed values (such as a trailing
expression in Python) follow on standard output as text; what nsm has to say goes to standard
error. Displayed images are written to new files, whose names it says: in DIR, else in a fresh
private directory below TMPDIR.

The current directory is mounted at /project, to be read only or as --project-mode says, unless it
is your home directory, one above it, or one that nsm refuses. NAME means a session of this project;
another project's is named by its id, or SCOPE/NAME. A session that exists already keeps its
environment, project and network: asked for others by options, it does not run the code.

exit codes:
  the code's own, else
  124  timed out
  125  nsm could not run it
  130  interrupted
  2    wrong usage

examples:
  nsm run -e python 'print(6 * 7)'
  nsm run -e bash -s work 'cd /project && git log | head'
  nsm run script.py a b
  nsm run -e science -f train.py -- --epochs 3
  cat script.py | nsm run -e python -t 10
  nsm run -i -e bash 'sort | uniq -c' < words.txt
  nsm run -e python -s plots --images . -f plot.py
"""


def _parse(verb: Parser, arguments: list[str]) -> Namespace:
    """Read them: what code there is, and what it is given."""
    options, unknown = verb.parse_known_args(arguments)
    if unknown:
        has_file = options.file is not None or os.path.isfile(options.code or "")
        place = "; those of a script come after `--`" if has_file else ""
        verb.error(f"unrecognized arguments: {' '.join(unknown)}{place}")
    _find_script(verb, options)
    if options.project_mode is not None and options.no_project:
        verb.error("--project-mode needs a project: leave out --no-project")
    if options.images is not None and options.json:
        verb.error("--json prints images with all else, so --images has nothing to write")
    if options.fresh and (options.session is None or options.stdin or options.reset):
        verb.error("--fresh needs -s NAME, and neither -i nor --reset")
    has_no_code = options.file is options.code is None
    if options.stdin and ("-" in (options.code, options.file) or has_no_code):
        verb.error(
            "-i gives standard input to the code, so the code must come as an argument or with "
            "-f FILE"
        )
    # There is no `sys.stdin` where whoever started us has closed it.
    if has_no_code and (not sys.stdin or sys.stdin.isatty()):
        if not options.reset:
            verb.error("no code: give it as an argument, with -f FILE, or on standard input")
        options.code = ""
    return options


def _find_script(verb: Parser, options: Namespace) -> None:
    """Tell a script with its arguments from code."""
    words = [word for word in (options.code, *options.arguments) if word is not None]
    if options.file is None:
        if not words or not os.path.isfile(words[0]):
            if options.arguments and language_of(words[0], ""):
                verb.error(f"there is no file {words[0]!r}")
            if options.arguments:
                verb.error(
                    f"unrecognized arguments: {' '.join(options.arguments)}; arguments are for a "
                    "file. Code is one word: quote it"
                )
            return
        # Bash runs `./tool.sh` itself, in the directory where the session is.
        language = language_of(words[0], "")
        if not options.arguments and (not language or (language == "bash" and "/" in words[0])):
            return
        options.file, *words = words
    options.code, options.arguments = None, words


@cli.verb(
    "run",
    "Run code in a session, or in a fresh jail that is thrown away.",
    _EPILOG,
    cli.group(
        "code",
        cli.operand(
            "[CODE]",
            "the code, or the file that has it, such as script.py; `-` or nothing: standard input",
        ),
        cli.operand(
            "[ARG ...]",
            "what a file's code finds in sys.argv, process.argv or $1; after `--` if it begins "
            "with `-`",
            dest="arguments",
        ),
        cli.value("-f --file FILE", "read the code from a file, whatever its name"),
        cli.flag(
            "-i --stdin",
            "give standard input to the code while it runs; without, the code's is empty",
        ),
    ),
    cli.group(
        "where it runs",
        cli.value(
            "-e --env ENV",
            "the environment, see `nsm env`; may be left out where the session is there already, "
            "where the file's name or first line says it, and with `env` in [defaults] of "
            "config.toml",
        ),
        cli.value(
            "-s --session NAME",
            "keep state in the session of that name; `new`: under a new name, which is printed",
        ),
        cli.flag(
            "--reset",
            "begin with a fresh interpreter in the session: state is gone, files stay; CODE may "
            "be left out",
        ),
        cli.flag(
            "--fresh",
            "run it in a fresh interpreter beside the session's own, which goes on as it was; "
            "`nsm map` runs many",
        ),
        cli.value("-t --timeout SECONDS", "time limit, at most the environment's", cli.seconds),
    ),
    cli.group(
        "what it sees",
        cli.project("mount DIR, not the current directory"),
        cli.value(
            "--project-mode MODE",
            "readonly, or overlay: code may change the project, in a copy",
            choices=["readonly", "overlay"],
        ),
        cli.network("what a new session may reach: off, full, or hosts separated by commas"),
        cli.secrets("a secret that a new session uses and does not see"),
    ),
    cli.group(
        "what comes of it",
        cli.value("--images DIR", "write displayed images to this directory"),
        cli.flag("--json", "print the result, once the code has ended, as JSON"),
    ),
    usage="nsm run [OPTIONS] [CODE | FILE [ARG ...]]",
    parse=_parse,
    failure=cli.EXIT_RUN_FAILED,
)
def _run(options: Namespace) -> int:
    given = options.project or (None if options.no_project else DEFAULT)
    seen = project_of(given)
    reads_input = (
        options.stdin or "-" in (options.code, options.file) or options.code is options.file is None
    )
    code = _read_code(options.code, options.file)
    if seen.path is None and options.project_mode is not None:
        raise BadProjectError(
            f"--project-mode {options.project_mode} needs a project, and the current directory "
            "cannot be one.",
            hint="Go to one, or name it with --project DIR.",
        )
    with Client(project=given) as client:
        bring_project(client.far_socket, seen)
        why = "" if seen.chosen or seen.path is not None else why_no_project()
        try:
            ended = _Execution(client, options, seen, why).run(code)
        except BadProjectError as error:
            if seen.here is not None:
                bring_project(client.far_socket, seen, anew=True)
            elif seen.chosen or seen.path is None or options.project_mode is not None:
                raise
            else:
                # Refused before anything ran. Nobody asked for this directory: go on without it.
                seen, why = NO_PROJECT, error.message
            ended = _Execution(client, options, seen, why).run(code)
    if not reads_input and _has_unread_input():
        terminal.note("standard input was not read: `nsm run -i` gives it to the code")
    return ended


# The code.


def _read_code(argument: str | None, file: str | None) -> str:
    """The code: the argument, or what is in the file; ``-``, or neither, is standard input."""
    if file is None and argument not in (None, "-"):
        return _decoded(os.fsencode(argument), "the code")
    with open_input(file or "-") as stream:
        # One byte more than could be sent, so that a device or pipe without end is noticed as too
        # large.
        data = stream.read(MAX_FRAME_BYTES + 1)
    return _decoded(data, "standard input" if file in (None, "-") else f"the file {file!r}")


def _has_unread_input() -> bool:
    """Tell whether standard input holds data now that nobody has begun to read."""
    if not sys.stdin:
        return False
    try:
        descriptor = sys.stdin.fileno()
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISREG(mode):
            # A shell that reads a list line by line has begun, and goes on with it.
            return os.lseek(descriptor, 0, os.SEEK_CUR) == 0 < os.fstat(descriptor).st_size
        if not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):
            return False
        waiting = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
        return int.from_bytes(waiting, sys.byteorder) > 0
    except (OSError, ValueError):  # there is no descriptor
        return False


def language_of(file: str | None, code: str) -> str:
    """Language of the code (`python`, `node`, `bash`), from its first line
    (``#!/usr/bin/env python3``) or else the file's name; empty if neither says."""
    first = code.partition("\n")[0]
    if first.startswith("#!"):
        words = [word for word in first[2:].split() if not word.startswith("-") and "=" not in word]
        names = [word.rpartition("/")[2] for word in words]
        if names[:1] == ["env"]:
            names = names[1:]
        return wire_code.of_program(names[0]) if names else ""
    return wire_code.of_suffix(os.path.splitext(file or "")[1])


def _argv_of(file: str | None, arguments: list[str]) -> list[str]:
    """Name and arguments that a script finds; empty for code that is in no file."""
    if file is None:
        return []
    return [file if file == "-" else os.path.abspath(file), *arguments]


def _decoded(data: bytes, what: str) -> str:
    try:
        code = data.decode("utf-8-sig")  # a byte order mark is no part of the code
    except UnicodeDecodeError as error:
        raise BadRequestError(
            f"{what} is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02x}",
            hint="Convert it, e.g. with `iconv -f latin1 -t utf-8`.",
        ) from None
    if (position := code.find("\0")) >= 0:
        raise BadRequestError(
            f"{what} is not code: character {position} is NUL",
            hint="Is it a compiled or compressed file?",
        )
    return code


# Its execution.


class _Execution:
    """One run, shown while it goes on. `why`: a new session sees no project although nobody has
    said so; else empty."""

    def __init__(self, client: Client, options: Namespace, project: Project, why: str) -> None:
        self._why = why
        self._client = client
        self._options = options
        self._project = project
        self._streams = {
            "stdout": (sys.stdout.buffer, Live()),
            "stderr": (sys.stderr.buffer, Live()),
        }
        # Before anything is run: what cannot be written should not cost a result.
        self._folder = Folder(options.images)
        self._failed = False

    def run(self, code: str) -> int:
        options = self._options
        language = "" if options.env else language_of(options.file, code)
        place = place_of(
            self._project,
            env=options.env or "",
            session=options.session,
            project_mode=options.project_mode,
            network=options.network,
            secrets=options.secrets,
            inherit=self._client.server.inherit,
            language=language,
        )
        argv = tuple(_argv_of(options.file, options.arguments))
        if options.fresh:
            call = run_fresh(place, RunOptions(options.timeout), checked_code(code), argv=argv)
        else:
            call = run(
                place,
                RunOptions(
                    options.timeout,
                    stream=not options.json,
                    stdin=options.stdin,
                    bytes=not options.json,
                ),
                checked_code(code),
                reset=options.reset,
                argv=argv,
            )
        wire = self._client.call(
            *(call.op, call.args),
            on_event=self._show,
            interruptible=True,
            stdin=(sys.stdin.buffer if sys.stdin else b"") if options.stdin else None,
        )
        wire |= {name: text_of(wire.get(name)) for name in self._streams}
        result = read(RunResult, wire)
        if result.session.created and result.session.name:
            self._tell_of_save(result.session.name, result.session.id)
        if self._why and result.session.created:
            terminal.note(f"no project is mounted: {formats.error(self._why, '')}")
        if options.json:
            terminal.out_json(wire)
        else:
            self._finish(result)
        return exit_code(result) or (cli.EXIT_RUN_FAILED if self._failed else 0)

    def _tell_of_save(self, name: str, session_id: str) -> None:
        """Say that an earlier session of that name was saved, rather than begin with nothing."""
        folder = os.path.join(paths.data_dir(), "saves")
        with suppress(OSError, NsmError):
            if not any(entry.startswith(f"{name}.") for entry in os.listdir(folder)):
                return
            from nsm.saves import kept  # noqa: PLC0415  # few sessions have a save

            project = self._client.inspect(session_id).session.project
            saves = [save for save in kept.automatic_of(name) if save.project == project]
            for save in saves[:1]:
                terminal.note(
                    f"this session {name} is new; an earlier one was saved "
                    f"{formats.date(save.made_at)}: `nsm restore {save.name} NEW-NAME`"
                )

    def _show(self, event: Event) -> None:
        if event.event == RECONNECTED:
            for _, live in self._streams.values():
                live.miss()
            if not self._options.json:
                terminal.note(
                    "the supervisor was replaced, or out of reach for a moment; what the code "
                    "prints now comes with its result"
                )
            return
        output = output_of(event)
        if output is not None:
            name, text = output
            _, live = self._streams[name]
            self._write(name, live.take(text, skipped=bool(event.data.get("skipped"))))

    def _finish(self, result: RunResult) -> None:
        left_out: dict[str, int] = {}
        finals = {"stdout": result.stdout, "stderr": result.stderr}
        for name, (_, live) in self._streams.items():
            truncation = result.truncated.get(name)
            rest = live.rest(finals[name], truncation.omitted_bytes if truncation else 0)
            self._write(name, rest.text)
            if rest.left_out_bytes:
                left_out[name] = rest.left_out_bytes
        displays = [display(bundle) for bundle in result.displays]
        if result.stdout[-1:] not in ("", "\n") and any(shown.text for shown in displays):
            self._write("stdout", "\n")  # what is displayed has lines of its own
        for shown in displays:
            self._show_display(shown, result.session.name or result.env)
        fresh_name = self._options.session == "new"
        for note in run_notes(result, fresh_name=fresh_name, left_out=left_out):
            terminal.note(note)

    def _show_display(self, shown: Display, stem: str) -> None:
        self._write("stdout", shown.text)
        for note in shown.notes:
            terminal.note(note)
        if shown.picture is not None:
            try:
                path = self._folder.write(shown.picture, stem)
            except OSError as error:
                self._failed = True
                terminal.note(f"{shown.picture.what}, cannot be written: {formats.os_error(error)}")
            else:
                terminal.note(f"{shown.picture.what}: {formats.visible(path)}")

    def _write(self, name: str, text: str) -> None:
        if text:
            stream, _ = self._streams[name]
            stream.write(text.encode("utf-8", "surrogateescape"))
            stream.flush()
