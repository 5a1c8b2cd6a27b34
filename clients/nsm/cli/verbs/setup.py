"""`nsm setup`: give nsm to a coding agent, and take it back."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from nsm import paths
from nsm.cli import terminal
from nsm.cli.confirm import agreed, may_ask
from nsm.cli.options import EXIT_FAILED, EXIT_OK, EXIT_USAGE, Parser
from nsm.cli.render.formats import visible, visible_lines
from nsm.setup import plan, record
from nsm.setup.agents import PROGRAM, TITLES, agent, is_installed, skill
from nsm.setup.settings_file import SettingsFileError
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nsm.setup.agents import CodingAgent
    from nsm.setup.plan import SetupPlan

_EPILOG = """\
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


def parser() -> Parser:
    """The verb's options."""
    parser = Parser("setup", "Give nsm to a coding agent, or take it back.", _EPILOG)
    parser.add_argument(
        "clients",
        nargs="*",
        choices=list(TITLES),
        metavar="CLIENT",
        help=f"one of {', '.join(TITLES)}; those that are found here, if not given",
    )
    parser.add_argument("--skill", action="store_true", help="print the skill, and change nothing")
    parser.add_argument("--undo", action="store_true", help="take back what was changed")
    parser.add_yes()
    return parser


def main(arguments: list[str]) -> int:
    """Show the differences, ask, and write."""
    options = parser().parse_args(arguments)
    if options.skill:
        terminal.out(skill().rstrip())
        return EXIT_OK
    program = _program()
    chosen = [agent(name, program, os.environ) for name in options.clients or TITLES]
    if not options.clients and not options.undo:
        chosen = [each for each in chosen if is_installed(each, paths.search_path())]
        if not chosen:
            terminal.note(f"none of these was found here: {', '.join(TITLES)}; name one")
            return EXIT_FAILED
        terminal.note(f"found {', '.join(each.title for each in chosen)}")
    code = EXIT_OK
    for each in chosen:
        try:
            code = max(code, _carry_out(each, undo=options.undo, yes=options.yes))
        except (NsmError, OSError) as error:
            code = max(code, terminal.report(error))
    return code


def _carry_out(chosen: CodingAgent, *, undo: bool, yes: bool) -> int:
    with record.locked(lambda: terminal.note("waiting for another `nsm setup`")):
        planned = plan.plan_undo(chosen) if undo else plan.plan_setup(chosen)
        if not planned.changes:
            plan.apply(planned)  # the record may change: another agent's file is used here, too
            _tell(planned)
            if planned.left:
                return EXIT_FAILED
            state = "has nothing of nsm's" if undo else "is set up already"
            terminal.out(f"{chosen.title} {state}: nothing to change.")
            return EXIT_OK
        terminal.out("\n".join(_shown(planned)))
        _tell(planned)
        if chosen.note and not undo:
            terminal.note(chosen.note)
        if not yes:
            if not may_ask():
                terminal.note("no terminal to confirm on: nothing was written; pass --yes")
                return EXIT_USAGE
            if not agreed("Write this?"):
                terminal.note("nothing was written")
                return EXIT_FAILED
        plan.apply(planned)
    if planned.left:
        return EXIT_FAILED
    done = "has nothing of nsm's any more" if undo else "is set up"
    terminal.out(f"{chosen.title} {done}. Start it again, or a new session in it.")
    return EXIT_OK


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
