"""`nsm save`: write what is in a session into a file; list and remove such files."""

from __future__ import annotations

from nsm.cli import targets, terminal
from nsm.cli.options import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, Parser, seconds, whole_number
from nsm.cli.render.saves import saved_text, saves_table
from nsm.client.blocking import Client
from nsm.saves import kept
from nsm.saves.kept import MAX_MB
from nsm.saves.reports import SaveError, SaveInterruptedError
from nsm.saves.saves import Saves

_EPILOG = """\
A save has the variables and functions of a Python, Bash or Node session, classes and imports of
Python, classes of Node, and aliases, traps and options of Bash. It also has the working directory,
environment variables, /workspace, /tmp, the transcript, and changes of a copied project.
`nsm restore` makes a new session of it. The saved session goes on as it was.

Variables of Python are pickled one by one; those that share an object still share it when they are
restored. What cannot be pickled, or takes longer than 10 s, is listed with the reason, and the rest
is saved. Environment variables that nsm gave the session are not saved. Values of other variables
are, so a save may hold secrets. Only you can read it (mode 0600).

FILE appears whole or not at all. Without it, the save is kept in ~/.local/share/nsm/saves under the
session's name, and an older one is replaced. `nsm save ls` lists these saves, `nsm save rm NAME`
removes one. If a session is called ls or rm, name it SCOPE/NAME.

examples:
  nsm save work
  nsm save work ./work.nsmsave
  nsm save ls
  nsm save rm work
"""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("save", "Write what is in a session into a file.", _EPILOG)
    parser.add_argument(
        "session", metavar="SESSION", help="an id, a name, or SCOPE/NAME; or ls, or rm"
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="*",
        default=[],
        help="the file of the save; after rm, names of saves",
    )
    parser.add_argument(
        "-t",
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help="time for pickling all variables; the environment's limit is the default and the most",
    )
    parser.add_argument(
        "--max-mb",
        type=whole_number,
        metavar="MB",
        default=MAX_MB,
        help="largest size of FILE; without FILE, of all kept saves together; and of what is in "
        f"the session (default: {MAX_MB})",
    )
    parser.add_json("what was saved, or the list")
    return parser


def main(arguments: list[str]) -> int:
    """Save, list or remove."""
    verb = parser()
    options = verb.parse_args(arguments)
    if options.session == "ls":
        if options.files:
            verb.error("`nsm save ls` takes no names")
        rows = kept.listed()
        terminal.answer(options, rows, lambda: saves_table(rows))
        return EXIT_OK
    if options.session == "rm":
        if not options.files:
            verb.error("name the saves that are to be removed")
        return _remove(options.files)
    if len(options.files) > 1:
        verb.error("name one FILE at most")
    try:
        with Client(autostart=False) as client:
            targets.tell(client, options.session)
            saved = Saves(client).save(
                options.session,
                options.files[0] if options.files else None,
                timeout_s=options.timeout,
                max_mb=options.max_mb,
            )
    except SaveInterruptedError as error:
        return terminal.report(error, EXIT_INTERRUPTED)
    terminal.answer(options, saved, lambda: saved_text(saved))
    return EXIT_OK


def _remove(names: list[str]) -> int:
    failed = False
    for name in names:
        try:
            kept.remove(name)
        except SaveError as error:
            failed = True
            terminal.report(error)
    return EXIT_FAILED if failed else EXIT_OK
