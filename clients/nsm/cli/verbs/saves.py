"""`nsm save`, `restore` and `tree`: sessions in files, and what was made of what."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm.cli import connection, terminal
from nsm.cli import options as cli
from nsm.client.blocking import Client
from nsm.saves import kept
from nsm.saves.kept import MAX_MB
from nsm.saves.reports import SaveError, SaveInterruptedError

if TYPE_CHECKING:
    from argparse import Namespace


_EPILOG_OF_SAVE = """\
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


@cli.verb(
    "save",
    "Write what is in a session into a file.",
    _EPILOG_OF_SAVE,
    cli.operand("SESSION", "an id, a name, or SCOPE/NAME; or ls, or rm"),
    cli.operand("[FILE ...]", "the file of the save; after rm, names of saves", dest="files"),
    cli.value(
        "-t --timeout SECONDS",
        "time for pickling all variables; the environment's limit is the default and the most",
        cli.seconds,
    ),
    cli.value(
        "--max-mb MB",
        "largest size of FILE; without FILE, of all kept saves together; and of what is in "
        f"the session (default: {MAX_MB})",
        cli.whole_number,
        default=MAX_MB,
    ),
    cli.as_json("what was saved, or the list"),
)
def _save(options: Namespace) -> int:
    from nsm.cli.render.saves import saved_text, saves_table  # noqa: PLC0415  # of one verb
    from nsm.saves.saves import Saves  # noqa: PLC0415  # of two verbs

    if options.session == "ls":
        if options.files:
            raise cli.UsageError("`nsm save ls` takes no names")
        rows = kept.listed()
        terminal.answer(options, rows, lambda: saves_table(rows))
        return cli.EXIT_OK
    if options.session == "rm":
        if not options.files:
            raise cli.UsageError("name the saves that are to be removed")
        return _remove(options.files)
    if len(options.files) > 1:
        raise cli.UsageError("name one FILE at most")
    try:
        with connection.client_of(options.session) as client:
            saved = Saves(client).save(
                options.session,
                options.files[0] if options.files else None,
                timeout_s=options.timeout,
                max_mb=options.max_mb,
            )
    except SaveInterruptedError as error:
        return terminal.report(error, cli.EXIT_INTERRUPTED)
    terminal.answer(options, saved, lambda: saved_text(saved))
    return cli.EXIT_OK


def _remove(names: list[str]) -> int:
    failed = False
    for name in names:
        try:
            kept.remove(name)
        except SaveError as error:
            failed = True
            terminal.report(error)
    return cli.EXIT_FAILED if failed else cli.EXIT_OK


_EPILOG_OF_RESTORE = """\
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


@cli.verb(
    "restore",
    "Start a session from a save of `nsm save`.",
    _EPILOG_OF_RESTORE,
    cli.operand("SAVE", "name of a save that is kept, or a file"),
    cli.operand("[AS]", "name of the new session; else that of the saved one", dest="name"),
    cli.value(
        "-e --env ENV",
        "environment; else that of the saved one; a FILE chooses presets only",
        default="",
    ),
    cli.value(
        "-t --timeout SECONDS",
        "time for loading all variables, and for each piece of code that --rerun runs; "
        "the environment's limit is the default and the most",
        cli.seconds,
    ),
    cli.flag("--rerun", "make again what cannot be restored, by running the code that made it"),
    cli.value(
        "--max-mb MB",
        f"most that SAVE may unpack to (default: {MAX_MB}; of a file that is not kept by nsm "
        "1024, or 20 times its own size if that is more)",
        cli.whole_number,
    ),
    cli.as_json("the session, and what was restored"),
)
def _restore(options: Namespace) -> int:
    from nsm.cli.render.saves import restored_text  # noqa: PLC0415  # of one verb
    from nsm.saves.saves import Saves  # noqa: PLC0415  # of two verbs

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
        return terminal.report(error, cli.EXIT_INTERRUPTED)
    terminal.answer(options, restored, lambda: restored_text(restored))
    return cli.EXIT_INTERRUPTED if restored.interrupted else cli.EXIT_OK


_EPILOG_OF_TREE = """\
A save (`nsm save`) is below its session, a session that was restored is below its save, and a fork
(`nsm fork`) below its original.
`nsm ps` tells more of sessions, `nsm save ls` lists saves only. Starts no supervisor.
"""


@cli.verb(
    "tree",
    "Show sessions and saves as a tree.",
    _EPILOG_OF_TREE,
    cli.as_json("an array of objects, each with its children,"),
)
def _tree(options: Namespace) -> None:
    from nsm.cli.render.saves import forest, tree_text  # noqa: PLC0415  # of one verb

    rows = []
    with suppress(cli.Done), connection.running() as client:
        rows = client.sessions()
    nodes = forest(rows, kept.listed())
    terminal.answer(options, nodes, lambda: tree_text(nodes, terminal.width(), _branches()))


def _branches() -> tuple[str, str, str]:
    from nsm.cli.render.saves import ASCII_BRANCHES, BRANCHES  # noqa: PLC0415  # of one verb

    with suppress(UnicodeEncodeError, LookupError):
        "".join(BRANCHES).encode(sys.stdout.encoding)
        return BRANCHES
    return ASCII_BRANCHES
