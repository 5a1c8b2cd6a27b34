"""`nsm uninstall`: take nsm out of the agents' files, and remove all that it keeps."""

from __future__ import annotations

import os
import shlex
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm import paths
from nsm.cli import terminal
from nsm.cli.confirm import agreed, may_ask
from nsm.cli.options import EXIT_FAILED, EXIT_OK, EXIT_USAGE, Parser
from nsm.cli.render.formats import visible
from nsm.cli.verbs import service, shutdown
from nsm.hosts.address import configured_hosts, find_host
from nsm.hosts.tunnel import INSTALLED
from nsm.setup import plan, record
from nsm.setup.agents import PROGRAM, TITLES, agent
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsm.setup.agents import CodingAgent

_EPILOG = """\
Ends the supervisor with all sessions, takes nsm out of the files of coding agents, removes the
systemd units, and then the directories of configuration, records, environments, saves, caches and
sockets. You see all of it first.

What it leaves is named at the end: the programs themselves, other machines, and what agents in
boxes keep of their own.
"""


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("uninstall", "Remove all that nsm has put on this machine.", _EPILOG)
    parser.add_yes()
    return parser


def main(arguments: list[str]) -> int:
    """Show what goes, ask, and remove it."""
    options = parser().parse_args(arguments)
    if _has_boxes():
        terminal.note(
            "a box runs, or was killed, and what nsm has made in its project would stay there: end "
            "the box (`nsm box -- true` clears up after one that was killed), and try again"
        )
        return EXIT_FAILED
    os.environ.pop("NSM_HOST", None)  # another machine's supervisor stays
    agents = [agent(name, PROGRAM, os.environ) for name in TITLES]
    code = EXIT_OK
    with record.locked(lambda: terminal.note("waiting for another `nsm setup`")):
        titles: dict[str, list[str]] = {}  # several agents read the same file
        left: list[str] = []
        for each in agents:
            try:
                planned = plan.plan_undo(each)
                left += planned.left
                for change in planned.changes:
                    what = "remove" if change.after is None else "take nsm out of"
                    titles.setdefault(f"{what} {visible(change.path)}", []).append(each.title)
            except (NsmError, OSError) as error:
                code = terminal.report(error)
        for what, of in titles.items():
            terminal.out(f"- {', '.join(of)}: {what}")
    directories, remote = _directories(), _remote_parts()
    has_units = service.is_installed()
    if has_units:
        terminal.out("- remove the units of `nsm service install`")
    terminal.out("- end the supervisor and all sessions, if one runs")
    for directory in directories:
        terminal.out(f"- remove {visible(directory)} and all that is in it")
    if not options.yes:
        if not may_ask():
            terminal.note("no terminal to confirm on: nothing was removed; pass --yes")
            return EXIT_USAGE
        if not agreed("Remove all of this?"):
            terminal.note("nothing was removed")
            return EXIT_FAILED
    with record.locked(lambda: None):
        code = max(code, *(_attempt(_undo_setup, each) for each in agents))
    if has_units:
        code = max(code, _attempt(service.main, ["uninstall", "--yes"]))
    code = max(code, _attempt(shutdown.main, ["--yes"]))
    code = max(code, *(_attempt(_remove, directory) for directory in directories))
    terminal.out(
        "The programs stay: `uv tool uninstall nsm-sessions`, or as you have installed them."
    )
    for line in left:
        terminal.note(visible(line))
    terminal.out("So does what agents in boxes keep of their own, in ~/.claudebox and the like.")
    for command in remote:
        terminal.out(f"On another machine: {visible(command)}")
    return EXIT_FAILED if left else code


def _has_boxes() -> bool:
    """Return whether there are records of boxes (`nsmbox.protection.stand_ins`): only these tell
    which files in projects are nsm's."""
    try:
        names = os.listdir(os.path.join(paths.state_dir(), "boxes"))
    except OSError:
        return False
    return any(name.endswith(".sock") for name in names)


def _undo_setup(chosen: CodingAgent) -> int:
    plan.apply(plan.plan_undo(chosen))
    return EXIT_OK


def _attempt(act: Callable[..., int], argument: object) -> int:
    """Do one step; what goes wrong is told, and the next step follows."""
    try:
        return act(argument)
    except (NsmError, OSError) as error:
        return terminal.report(error)


def _directories() -> list[str]:
    """nsm's own directories that are there. A directory that NSM_SOCKET names may be anybody's."""
    named = [paths.config_dir(), paths.data_dir(), paths.cache_dir(), paths.state_dir()]
    if not os.environ.get("NSM_SOCKET"):
        named.append(paths.runtime_dir())
    return [each for each in named if os.path.lexists(each)]


def _remove(directory: str) -> int:
    if os.path.islink(directory):
        terminal.note(f"{visible(directory)} is a link, and stays: remove it and what it leads to")
        return EXIT_FAILED
    if os.lstat(directory).st_uid != os.geteuid():  # anybody can make root's in /tmp
        terminal.note(f"{visible(directory)} belongs to another user, and stays")
        return EXIT_FAILED
    # Packages may have directories that are read-only, and overlays leave some with mode 0000.
    os.chmod(directory, 0o700)
    for folder, names, _ in os.walk(directory):
        for name in names:
            if not os.path.islink(path := os.path.join(folder, name)):
                os.chmod(path, 0o700)
    shutil.rmtree(directory)
    return EXIT_OK


def _remote_parts() -> list[str]:
    """Commands that remove nsm from the other machines of config.toml."""
    commands: list[str] = []
    with suppress(NsmError, OSError):
        for name in configured_hosts():
            host = find_host(name)
            words = [*host.ssh, "-t", *host.destination]
            commands.append(f"{shlex.join(words)} {host.program or INSTALLED} uninstall")
    return commands
