"""`nsm run`: run code, and be its terminal."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm import paths
from nsm.cli import terminal
from nsm.cli.code_source import argv_of, has_unread_input, language_of, read_code
from nsm.cli.files.pictures import Folder
from nsm.cli.options import (
    EXIT_INTERRUPTED,
    EXIT_RUN_FAILED,
    EXIT_TIMED_OUT,
    Parser,
    add_network,
    add_secret,
    seconds,
)
from nsm.cli.render import formats
from nsm.cli.render.results import Display, display, run_notes
from nsm.cli.streams.live_output import Live
from nsm.client.blocking import Client
from nsm.client.events import output_of, text_of
from nsm.client.places import checked_code, place_of
from nsm.client.projects import DEFAULT, NO_PROJECT, bring_project, project_of, why_no_project
from nsm.client.retry import RECONNECTED
from nsm.wire.code import RunOptions, RunResult, run
from nsm.wire.errors import BadProjectError, NsmError
from nsm.wire.messages import read

if TYPE_CHECKING:
    import argparse
    from typing import IO

    from nsm.client.projects import Project
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


def parser() -> Parser:
    """The verb's options."""
    parser = Parser(
        "run", "Run code in a session, or in a fresh jail that is thrown away.", _EPILOG
    )
    parser.usage = "nsm run [OPTIONS] [CODE | FILE [ARG ...]]"
    code = parser.add_argument_group("code")
    code.add_argument(
        "code",
        nargs="?",
        metavar="CODE",
        help="the code, or the file that has it, such as script.py; `-` or nothing: standard input",
    )
    code.add_argument(
        "arguments",
        nargs="*",
        default=[],
        metavar="ARG",
        help="what a file's code finds in sys.argv, process.argv or $1; after `--` if it begins "
        "with `-`",
    )
    code.add_argument(
        "-f", "--file", metavar="FILE", help="read the code from a file, whatever its name"
    )
    code.add_argument(
        "-i",
        "--stdin",
        action="store_true",
        help="give standard input to the code while it runs; without, the code's is empty",
    )
    where = parser.add_argument_group("where it runs")
    where.add_argument(
        "-e",
        "--env",
        metavar="ENV",
        help="the environment, see `nsm env`; may be left out where the session is there "
        "already, where the file's name or first line says it, and with `env` in [defaults] of "
        "config.toml",
    )
    where.add_argument(
        "-s",
        "--session",
        metavar="NAME",
        help="keep state in the session of that name; `new`: under a new name, which is printed",
    )
    where.add_argument(
        "--reset",
        action="store_true",
        help="begin with a fresh interpreter in the session: state is gone, files stay; CODE may "
        "be left out",
    )
    where.add_argument(
        "-t",
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help="time limit, at most the environment's",
    )
    sees = parser.add_argument_group("what it sees")
    project = sees.add_mutually_exclusive_group()
    project.add_argument("--project", metavar="DIR", help="mount DIR, not the current directory")
    project.add_argument("--no-project", action="store_true", help="mount no project")
    sees.add_argument(
        "--project-mode",
        choices=["readonly", "overlay"],
        metavar="MODE",
        help="readonly, or overlay: code may change the project, in a copy",
    )
    add_network(
        sees.add_argument,
        "what a new session may reach: off, full, or hosts separated by commas",
    )
    add_secret(sees.add_argument, "a secret that a new session uses and does not see")
    result = parser.add_argument_group("what comes of it")
    result.add_argument("--images", metavar="DIR", help="write displayed images to this directory")
    result.add_argument(
        "--json", action="store_true", help="print the result, once the code has ended, as JSON"
    )
    return parser


def main(arguments: list[str]) -> int:
    """Run."""
    verb = parser()
    options, unknown = verb.parse_known_args(arguments)
    if unknown:
        has_file = options.file is not None or os.path.isfile(options.code or "")
        place = "; those of a script come after `--`" if has_file else ""
        verb.error(f"unrecognized arguments: {' '.join(unknown)}{place}")
    _find_script(verb, options)
    if options.project_mode is not None and options.no_project:
        verb.error("--project-mode is about a project, and --no-project mounts none")
    if options.images is not None and options.json:
        verb.error("--json prints images with all else, so --images has nothing to write")
    if options.stdin and ("-" in (options.code, options.file) or _has_no_code(options)):
        verb.error(
            "-i gives standard input to the code, so the code must come as an argument or with "
            "-f FILE"
        )
    # There is no `sys.stdin` where whoever started us has closed it.
    if _has_no_code(options) and (not sys.stdin or sys.stdin.isatty()):
        if not options.reset:
            verb.error("no code: give it as an argument, with -f FILE, or on standard input")
        options.code = ""
    reads_input = (
        options.stdin or "-" in (options.code, options.file) or options.code is options.file is None
    )
    try:
        code = _run(options)
    except BrokenPipeError:
        raise
    except (NsmError, OSError) as error:
        return terminal.report(error, EXIT_RUN_FAILED)
    if not reads_input and has_unread_input():
        terminal.note("standard input was not read: `nsm run -i` gives it to the code")
    return code


def _find_script(verb: Parser, options: argparse.Namespace) -> None:
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


def _has_no_code(options: argparse.Namespace) -> bool:
    return options.file is None and options.code is None


def exit_code(result: RunResult) -> int:
    """Choose the exit code of the process."""
    if result.timed_out:
        return EXIT_TIMED_OUT
    if result.interrupted:
        return EXIT_INTERRUPTED
    # A process can say no more than 8 bits, and never that a failure was none.
    return result.exit_code & 0xFF or (1 if result.exit_code else 0)


def _run(options: argparse.Namespace) -> int:
    code = read_code(options.code, options.file)
    given = options.project or (None if options.no_project else DEFAULT)
    project = project_of(given)
    if project.path is None and options.project_mode is not None:
        raise BadProjectError(
            "The current directory is no project that code could be shown, so there is none "
            f"of the mode {options.project_mode}.",
            hint="Go to one, or name it with --project DIR.",
        )
    with Client(project=given) as client:
        bring_project(client.far_socket, project)
        why = "" if project.chosen or project.path is not None else why_no_project()
        try:
            return _Execution(client, options, project, why).run(code)
        except BadProjectError as error:
            if project.here is not None:
                bring_project(client.far_socket, project, anew=True)
                return _Execution(client, options, project, why).run(code)
            if project.chosen or project.path is None or options.project_mode is not None:
                raise
            # Refused before anything ran. Nobody asked for this directory: go on without it.
            why = error.message
        return _Execution(client, options, NO_PROJECT, why).run(code)


def _standard_input() -> IO[bytes] | bytes:
    """Our standard input; nothing where whoever started us has closed it."""
    return sys.stdin.buffer if sys.stdin else b""


class _Execution:
    """One run, shown while it goes on.

    Args:
        why: a new session sees no project although nobody has said so; else empty.
    """

    def __init__(
        self, client: Client, options: argparse.Namespace, project: Project, why: str
    ) -> None:
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
            argv=tuple(argv_of(options.file, options.arguments)),
        )
        wire = self._client.call(
            *(call.op, call.args),
            on_event=self._show,
            interruptible=True,
            stdin=_standard_input() if options.stdin else None,
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
        return exit_code(result) or (EXIT_RUN_FAILED if self._failed else 0)

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
