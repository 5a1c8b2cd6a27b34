"""`nsm setup` and `nsm uninstall`: give nsm to coding agents, take it back, remove it all."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm import paths
from nsm.cli import options as cli
from nsm.cli import terminal
from nsm.cli.main import load
from nsm.cli.render.formats import visible, visible_lines
from nsm.setup import plan, record
from nsm.setup.agents import PROGRAM, TITLES, agent, is_installed, skill
from nsm.setup.settings_file import SettingsFileError
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable, Iterator

    from nsm.setup.agents import CodingAgent
    from nsm.setup.plan import SetupPlan

_EPILOG_OF_SETUP = """\
Three things go into the agent's own files: the entry that starts nsm-mcp, a skill that teaches a
model how to use sessions, jobs, plots and overlays, and the permission to call the tool `run`
without asking. You see the difference first. Comments, order and indentation of the files stay.
Without a CLIENT, all that seem to be installed here are set up, one after the other.

--undo takes back exactly what was changed, and what was there before comes back. Where you have
changed the same lines since, or the record of the changes is gone, it says what to take out.

examples:
  nsm setup
  nsm setup claude
  nsm setup codex zed --yes
  nsm setup zed --undo
"""


@cli.verb(
    "setup",
    "Give nsm to a coding agent, or take it back.",
    _EPILOG_OF_SETUP,
    cli.operand(
        "[CLIENT ...]",
        f"one of {', '.join(TITLES)}; those that are found here, if not given",
        dest="clients",
        choices=list(TITLES),
    ),
    cli.flag("--skill", "print the skill, and change nothing"),
    cli.flag("--undo", "take back what was changed"),
    cli.YES,
)
def _setup(options: Namespace) -> int:
    if options.skill:
        terminal.out(skill().rstrip())
        return cli.EXIT_OK
    program = _program()
    chosen = [agent(name, program, os.environ) for name in options.clients or TITLES]
    if not options.clients and not options.undo:
        chosen = [each for each in chosen if is_installed(each, paths.search_path())]
        if not chosen:
            terminal.note(f"none of these was found here: {', '.join(TITLES)}; name one")
            return cli.EXIT_FAILED
        terminal.note(f"found {', '.join(each.title for each in chosen)}")
    return max(_attempt(_set_up, each, undo=options.undo, yes=options.yes) for each in chosen)


def _set_up(chosen: CodingAgent, *, undo: bool, yes: bool) -> int:
    with record.locked(lambda: terminal.note("waiting for another `nsm setup`")):
        planned = plan.plan_undo(chosen) if undo else plan.plan_setup(chosen)
        if not planned.changes:
            plan.apply(planned)  # the record may change: another agent's file is used here, too
            _tell(planned)
            if planned.left:
                return cli.EXIT_FAILED
            state = "has nothing of nsm's" if undo else "is set up already"
            terminal.out(f"{chosen.title} {state}: nothing to change.")
            return cli.EXIT_OK
        terminal.out("\n".join(_shown(planned)))
        _tell(planned)
        if chosen.note and not undo:
            terminal.note(chosen.note)
        if not yes:
            if not terminal.may_ask():
                terminal.note("no terminal to confirm on: nothing was written; pass --yes")
                return cli.EXIT_USAGE
            if not terminal.agreed("Write this?"):
                terminal.note("nothing was written")
                return cli.EXIT_FAILED
        plan.apply(planned)
    if planned.left:
        return cli.EXIT_FAILED
    done = "has nothing of nsm's any more" if undo else "is set up"
    terminal.out(f"{chosen.title} {done}. Start it again, or a new session in it.")
    return cli.EXIT_OK


def _tell(planned: SetupPlan) -> None:
    for note in (*planned.notes, *planned.left):
        terminal.note(visible(note))


def _program() -> str:
    """Path of `nsm-mcp`: beside `nsm` as it was called, where upgrades leave it in place."""
    search_path = paths.search_path()
    called = shutil.which(sys.argv[0], path=search_path) or sys.argv[0]
    for directory in (os.path.dirname(os.path.abspath(called)), os.path.dirname(sys.executable)):
        path = os.path.join(directory, PROGRAM)
        if os.access(path, os.X_OK):
            return path
    found = shutil.which(PROGRAM, path=search_path)
    if found is None:
        raise SettingsFileError(f"{PROGRAM} is not beside `nsm`", hint="Install nsm again.")
    return found


def _shown(planned: SetupPlan) -> Iterator[str]:
    """The difference without anything around it: that may hold secrets of other servers."""
    home = os.path.expanduser("~")
    for change in planned.changes:
        path = change.path.replace(f"{home}/", "~/", 1)
        word = "new" if change.before is None else "removed" if change.after is None else "changed"
        is_skill = change.after is not None and change.after.decode() == skill()
        yield f"{visible(path)} ({word}{'; `nsm setup --skill` prints it' if is_skill else ''}):"
        if change.after is not None and not is_skill:
            yield from _difference(_text(change.before), _text(change.after))
        yield ""


def _difference(before: str, after: str) -> Iterator[str]:
    """Lines that differ by more than a comma; of lines that were changed, what was."""
    import difflib  # noqa: PLC0415  # for this verb only

    old, new = before.splitlines(), after.splitlines()
    bare = [[line.replace(",", "") for line in lines] for lines in (old, new)]
    matcher = difflib.SequenceMatcher(None, bare[0], bare[1], autojunk=False)
    for kind, start, end, new_start, new_end in matcher.get_opcodes():
        removed, added = "\n".join(old[start:end]), "\n".join(new[new_start:new_end])
        if kind == "replace":
            _, removed, added = plan.splice_of(removed, added)
        if kind != "equal":
            yield from (f"  -{visible_lines(line)}" for line in removed.splitlines())
            yield from (f"  +{visible_lines(line)}" for line in added.splitlines())


def _text(content: bytes | None) -> str:
    return (content or b"").decode(errors="replace")


_EPILOG_OF_UNINSTALL = """\
Ends the supervisor with all sessions, takes nsm out of the files of coding agents, removes the
systemd units, and then the directories of configuration, records, environments, saves, caches and
sockets. You see all of it first.

What it leaves is named at the end: the programs themselves, other machines, and what agents in
boxes keep of their own.
"""


@cli.verb(
    "uninstall",
    "Remove nsm's files from this machine, and end all sessions.",
    _EPILOG_OF_UNINSTALL,
    cli.YES,
)
def _uninstall(options: Namespace) -> int:
    if _has_boxes():
        terminal.note(
            "a box runs, or was killed, and what nsm has made in its project would stay there: end "
            "the box (`nsm box -- true` clears up after one that was killed), and try again"
        )
        return cli.EXIT_FAILED
    os.environ.pop("NSM_HOST", None)  # another machine's supervisor stays
    agents = [agent(name, PROGRAM, os.environ) for name in TITLES]
    code = cli.EXIT_OK
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
    from nsm.cli.verbs import service  # noqa: PLC0415  # of one verb

    has_units = service.is_installed()
    if has_units:
        terminal.out("- remove the units of `nsm service install`")
    terminal.out("- end the supervisor and all sessions, if one runs")
    for directory in directories:
        terminal.out(f"- remove {visible(directory)} and all that is in it")
    if not options.yes:
        if not terminal.may_ask():
            terminal.note("no terminal to confirm on: nothing was removed; pass --yes")
            return cli.EXIT_USAGE
        if not terminal.agreed("Remove all of this?"):
            terminal.note("nothing was removed")
            return cli.EXIT_FAILED
    with record.locked(lambda: None):
        code = max(code, *(_attempt(_undo_setup, each) for each in agents))
    if has_units:
        code = max(code, _attempt(load("service").main, ["uninstall", "--yes"]))
    code = max(code, _attempt(load("shutdown").main, ["--yes"]))
    code = max(code, *(_attempt(_remove, directory) for directory in directories))
    terminal.out(
        "The programs stay: `uv tool uninstall nsm-sessions`, or as you have installed them."
    )
    for line in left:
        terminal.note(visible(line))
    terminal.out("So does what agents in boxes keep of their own, in ~/.claudebox and the like.")
    for words in remote:
        terminal.out(f"On another machine: {visible(words)}")
    return cli.EXIT_FAILED if left else code


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
    return cli.EXIT_OK


def _attempt(act: Callable[..., int], argument: object, **options: bool) -> int:
    """Do one step; what goes wrong is told, and the next step follows."""
    try:
        return act(argument, **options)
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
        return cli.EXIT_FAILED
    if os.lstat(directory).st_uid != os.geteuid():  # anybody can make root's in /tmp
        terminal.note(f"{visible(directory)} belongs to another user, and stays")
        return cli.EXIT_FAILED
    # Packages may have directories that are read-only, and overlays leave some with mode 0000.
    os.chmod(directory, 0o700)
    for folder, names, _ in os.walk(directory):
        for name in names:
            if not os.path.islink(path := os.path.join(folder, name)):
                os.chmod(path, 0o700)
    shutil.rmtree(directory)
    return cli.EXIT_OK


def _remote_parts() -> list[str]:
    """Commands that remove nsm from the other machines of config.toml."""
    from nsm.hosts.address import configured_hosts, find_host  # noqa: PLC0415  # of one verb
    from nsm.hosts.tunnel import INSTALLED  # noqa: PLC0415  # likewise

    commands: list[str] = []
    with suppress(NsmError, OSError):
        for name in configured_hosts():
            host = find_host(name)
            words = [*host.ssh, "-t", *host.destination]
            commands.append(f"{shlex.join(words)} {host.program or INSTALLED} uninstall")
    return commands
