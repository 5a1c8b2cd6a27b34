"""`nsm`: argv to a verb's module, and what goes wrong to stderr and an exit code."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from nsm._version import program_version
from nsm.wire.errors import NsmError, closest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nsm.cli.options import Verb

GROUPS = {
    "Run code": {
        "run": "run code in a session, or in a fresh jail",
        "exec": "start a program in a session, as a job",
        "jobs": "list and stop the jobs of sessions",
        "attach": "join a session, or one of its jobs",
        "map": "run many programs, each in a fresh interpreter",
        "interrupt": "stop what runs in a session, and keep the session",
        "undo": "take back the last calls of a session",
    },
    "Sessions": {
        "ps": "list the sessions",
        "top": "watch the sessions: processor, memory, rates",
        "logs": "show what was run in a session, and what came of it",
        "replay": "run a transcript again, and show what differs",
        "inspect": "show everything about a session",
        "net": "show or change what a session may reach",
        "secrets": "show, test and revoke tokens that code uses without seeing them",
        "port": "open, close and list ports of sessions",
        "fork": "make copies of a running Python or Bash session",
        "save": "save a session into a file",
        "restore": "start a session from a save",
        "tree": "show sessions and saves as a tree",
        "kill": "end sessions",
    },
    "Files and changes": {
        "cp": "copy files and directories to and from sessions",
        "diff": "show a session's changes of the project",
        "apply": "write a session's changes to the project",
        "discard": "discard a session's changes",
    },
    "Environments": {
        "env": "list, add and remove environments",
    },
    "Agents": {
        "box": "run an agent, or any command, in a box",
        "bridge": "show, try and check the programs that agents may start",
        "e2b": "serve the clients of E2B with sandboxes of this machine",
    },
    "The supervisor": {
        "status": "show its state, spare sessions, times and metrics",
        "events": "show what happened lately",
        "audit": "show who ran what, when, and what came of it",
        "http": "show where MCP is served over HTTP, and the token",
        "drain": "take no new work, and wait until nothing runs",
        "reload": "restart it with all its sessions, or reread the configuration",
        "shutdown": "end it and all sessions",
        "service": "have systemd run it",
    },
    "Other machines": {
        "host": "install nsm on other machines, for `nsm --host`",
    },
    "Set-up": {
        "setup": "give nsm to an editor or agent, or take it back",
        "doctor": "check what nsm needs on this host",
        "config": "check or show the configuration",
        "completion": "print a script that completes commands in your shell",
        "uninstall": "remove nsm's files from this machine",
    },
}
"""The verbs and what they do, grouped by subject."""

VERBS = {verb: what for verbs in GROUPS.values() for verb, what in verbs.items()}

_OTHERS_VERBS = {
    "stop": "`nsm shutdown` ends the supervisor and all sessions",
    "install": "`nsm setup` gives nsm to coding agents, `nsm service install` to systemd",
    "start": "nothing needs to be started, the first `nsm run` or editor starts the supervisor",
    "restart": "`nsm reload` restarts the supervisor and keeps all sessions",
    "envs": "`nsm env` lists the environments",
    "pool": "`nsm status pool` shows the sessions that are kept ready",
    "stats": "`nsm status times` shows how long things take",
    "metrics": "`nsm status metrics` prints all that is counted",
}
"""Commands that people know from other programs or older versions, and what to do here."""

_UNGUESSED = ("shutdown", "uninstall")
"""Verbs that end or remove all, and that nobody who mistypes another one is led to."""

_HIDDEN = {"__complete": "__complete", "ls": "ps", "rm": "kill"}
"""Verbs that help does not name: two are names that people know from other programs."""

_MODULES = {
    verb: module
    for module, verbs in {
        "jobs": "exec jobs",
        "sessions": "ps inspect interrupt undo fork kill",
        "screens": "attach top",
        "records": "logs events",
        "saves": "save restore tree",
        "network": "net port secrets",
        "changes": "diff apply discard",
        "supervisor": "status drain reload shutdown http config",
        "setup": "setup uninstall",
        "completion": "completion __complete",
    }.items()
    for verb in verbs.split()
}
"""The modules of `nsm.cli.verbs` that have several verbs; the others are named like theirs."""

VERBS_ELSEWHERE = {"box": "nsmbox.cli.box"}
"""Verbs of other packages than this one, which are loaded by these names alone."""

_COLLECT_AFTER = 100_000
"""Number of new objects after which Python looks for garbage. Most commands end with fewer. With
Python's default, 700, it would look dozens of times through modules that stay."""

_NO_HOST = "nsm: --host needs a host: ssh://user@host:port, or a name in config.toml\n"

_EXIT_USAGE = 2  # as in `options`, which need not be loaded for a version or a typing mistake


def program() -> NoReturn:
    """Run `main` as all that this process does, and end the process."""
    gc.set_threshold(_COLLECT_AFTER)
    code = main()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # one is closed: leave it to Python's usual end
        sys.exit(code)
    if "threading" in sys.modules:
        sys.exit(code)
    # Nothing is left to do, and Python would take a tenth of the time to clear its modules.
    os._exit(code)


def main(argv: list[str] | None = None) -> int:
    """Carry out a command. Returns the exit code (docs/reference/control-socket.md)."""
    arguments = sys.argv[1:] if argv is None else argv
    while arguments[:1] == ["--host"] or (arguments and arguments[0].startswith("--host=")):
        _, _, host = arguments[0].partition("=")
        if arguments[0] == "--host":
            if len(arguments) == 1:
                sys.stderr.write(_NO_HOST)
                return _EXIT_USAGE
            host, arguments = arguments[1], arguments[1:]
        arguments = arguments[1:]
        os.environ["NSM_HOST"] = host
    first, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if first == "help" and rest:
        first, rest = rest[0], ["--help"]
    if first in ("-h", "--help", "help"):
        return _guarded(lambda: _say(overview()))
    if first in ("-V", "--version"):
        return _guarded(lambda: _say(f"nsm {program_version()}\n"))
    if first in VERBS or first in _HIDDEN:
        return _guarded(lambda: _carry_out(load(first), rest))
    if not first:
        sys.stderr.write(overview())
        return _EXIT_USAGE
    sys.stderr.write(_unknown(first, rest))
    return _EXIT_USAGE


def load(verb: str) -> Verb:
    """A verb with its options; only its module is loaded."""
    from nsm.cli.options import DECLARED  # noqa: PLC0415  # not needed for help and version

    verb = _HIDDEN.get(verb, verb)
    import_module(VERBS_ELSEWHERE.get(verb) or f"nsm.cli.verbs.{_MODULES.get(verb, verb)}")
    return DECLARED[verb]


def overview() -> str:
    """The text of `nsm --help`."""
    width = max(map(len, VERBS))
    lines = ["usage: nsm [--host HOST] COMMAND [OPTIONS]", ""]
    lines += ["Run code in jailed Python, Bash and Node sessions."]
    for group, verbs in GROUPS.items():
        lines += ["", f"{group}:"]
        lines += [f"  {verb:<{width}}  {what}" for verb, what in verbs.items()]
    lines += ["", "HOST is another machine: ssh://user@host:port, or a name in config.toml."]
    lines += ["`nsm COMMAND --help` tells more; `nsm --version` prints the version.", ""]
    return "\n".join(lines)


def _say(text: str) -> int:
    print(text, end="")  # nothing, if standard output is closed
    return 0


def _carry_out(verb: Verb, arguments: list[str]) -> int:
    from nsm.cli import terminal  # noqa: PLC0415  # not needed for help and version

    terminal.set_up()
    return verb.main(arguments)


def _guarded(do: Callable[[], int]) -> int:
    """Do something; what it can't handle becomes a message and an exit code."""
    try:
        try:
            return do()
        finally:
            print(end="", flush=True)
    except (KeyboardInterrupt, NsmError, OSError) as error:
        from nsm.cli import options, terminal  # noqa: PLC0415  # not needed where all goes well

        if isinstance(error, BrokenPipeError):
            terminal.drop_stdout()
            return options.EXIT_BROKEN_PIPE
        if isinstance(error, KeyboardInterrupt):
            return options.EXIT_INTERRUPTED
        return terminal.report(error)


def _unknown(verb: str, rest: Sequence[str]) -> str:
    if verb == "stop" and rest:
        named = " ".join(rest) if " ".join(rest).isprintable() else "SESSION"
        return f"nsm: there is no command 'stop': `nsm kill {named}` ends sessions\n"
    if verb in _OTHERS_VERBS:
        return f"nsm: there is no command {verb!r}: {_OTHERS_VERBS[verb]}\n"
    close = closest(verb, [each for each in VERBS if each not in _UNGUESSED])
    guess = f"Did you mean `nsm {close}`? " if close else ""
    return f"nsm: unknown command {verb!r}\n{guess}`nsm --help` lists the commands.\n"
