"""`nsm restore`: make a session of a save."""

from __future__ import annotations

from nsm.cli import terminal
from nsm.cli.options import EXIT_INTERRUPTED, EXIT_OK, Parser, seconds, whole_number
from nsm.cli.render.saves import restored_text
from nsm.client.blocking import Client
from nsm.saves.kept import MAX_MB
from nsm.saves.reports import SaveInterruptedError
from nsm.saves.saves import Saves

_EPILOG = """\
Each thing of the save is listed with what became of it: restored, made again, or not restored and
why. The new session sees the project of this directory. It has the network and the limits of
any new session.

A save may come from somebody else. Nothing of it is unpacked or loaded outside of the new session,
but loading its variables runs code there, as `nsm run` would. If bytes of it were changed on the
way, or are missing, the new session is ended.

With another version of Python, functions and classes are made again from their source, and
variables that hold other code, such as lambdas, are not restored.

examples:
  nsm restore work
  nsm restore ./work.nsmsave again
  nsm restore work --rerun
"""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("restore", "Make a session of a save of `nsm save`.", _EPILOG)
    parser.add_argument("save", metavar="SAVE", help="name of a save that is kept, or a file")
    parser.add_argument(
        "name", metavar="AS", nargs="?", help="name of the new session; else that of the saved one"
    )
    parser.add_argument(
        "-e",
        "--env",
        metavar="ENV",
        default="",
        help="environment; else that of the saved one; a FILE chooses presets only",
    )
    parser.add_argument(
        "-t",
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help="time for loading all variables, and for each piece of code that --rerun runs; "
        "the environment's limit is the default and the most",
    )
    parser.add_argument(
        "--rerun",
        action="store_true",
        help="make again what cannot be restored, by running the code that made it",
    )
    parser.add_argument(
        "--max-mb",
        type=whole_number,
        metavar="MB",
        help=f"most that SAVE may unpack to (default: {MAX_MB}; of a file that is not kept by nsm "
        "1024, or 20 times its own size if that is more)",
    )
    parser.add_json("the session, and what was restored")
    return parser


def main(arguments: list[str]) -> int:
    """Restore."""
    options = parser().parse_args(arguments)
    try:
        with Client() as client:
            restored = Saves(client).restore(
                options.save,
                options.name,
                env=options.env,
                timeout_s=options.timeout,
                rerun=options.rerun,
                max_mb=options.max_mb,
            )
    except SaveInterruptedError as error:
        return terminal.report(error, EXIT_INTERRUPTED)
    terminal.answer(options, restored, lambda: restored_text(restored))
    return EXIT_INTERRUPTED if restored.interrupted else EXIT_OK
