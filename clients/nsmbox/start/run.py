"""Start a box: look up the host's facts, make the plan, ask the person, become the jail."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from nsm import paths
from nsm.dataclass import dataclass, replace
from nsmbox.host import lookup, program_links
from nsmbox.host.facts import BoxRequest, Facts
from nsmbox.model.plan import TOOLS_DIRECTORY, BoxError, Plan
from nsmbox.planning import planning
from nsmbox.start import request_additions

if TYPE_CHECKING:
    from nsm.wire.host import BoxPlace
    from nsmbox.start import launch

EXIT_INTERRUPTED = 130

_TOLD_NAMES = 6
_FIRST_TOLD = (".claude", ".mcp.json", ".vscode", ".envrc", ".cursor", ".husky")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Use of the plan: start, show or check it.

    Attributes:
        mistake: in the configuration, which is told with the rest of what is checked.
    """

    program: str
    yes: bool = False
    dry_run: bool = False
    check: bool = False
    mistake: BoxError | None = None

    @property
    def asks(self) -> bool:
        """True if a person may be asked."""
        return not (self.yes or self.dry_run)


def run(request: BoxRequest, way: Way, variables: Mapping[str, str]) -> int:
    """Do what was asked; does not return where a box is started."""
    request = request_additions.of_arguments(request)
    if way.check:
        from nsmbox.start.check import check  # noqa: PLC0415  # each way loads what it needs

        return check(request, variables, program=way.program, mistake=way.mistake)
    _refuse_root(request, way)
    _refuse_a_box_in_a_box()
    request = request_additions.at_the_top(request, variables, ask=way.asks)
    request = request_additions.of_worktrees(request, make=not way.dry_run)
    facts = lookup.look(request, variables)
    if more := request_additions.of_settings(request, facts, ask=way.asks, tell=partial(tell, way)):
        request = replace(request, add=(*request.add, *more))
        facts = lookup.look(request, variables)
    if not way.dry_run and _make_own(facts):
        facts = lookup.look(request, variables)
    search_path = variables.get("PATH", "")
    program = "" if _is_macos() else lookup.find_bwrap(search_path, *facts.writable)
    plan = planning.plan(request, facts)
    for name in request.extra:
        if name not in variables:
            tell(way, f"{name} is not set, so that the box does not have it")
    if not way.dry_run:
        with request_additions.unmade(request):
            _start(plan, program, request, facts, way)
    return _print(plan, program, facts, way)


def _print(plan: Plan, program: str, facts: Facts, way: Way) -> int:
    from nsm.jail.seccomp import filter_program  # noqa: PLC0415
    from nsmbox.planning import bwrap  # noqa: PLC0415  # each way loads what it needs

    _make_links(facts)  # so that what is printed can be pasted
    if _is_macos():
        from nsmbox.start import macos  # noqa: PLC0415

        sys.stdout.write(macos.command(plan) + "\n")
        return 0
    syscalls = filter_program(os.uname().machine)
    sys.stdout.write(bwrap.command(plan, program, syscalls=syscalls) + "\n")
    if plan.sockets:
        tell(way, f"{bwrap.SOCKETS} stands for a directory that is made at launch")
    if said := _not_made(plan, facts.home, all_of_them=True):
        tell(way, f"at launch there are empty placeholders for what {said}")
    if plan.programs:
        tell(way, f"at launch the supervisor is asked to let it start {', '.join(plan.programs)}")
    if plan.secrets:
        told = ", ".join(plan.secrets)
        tell(way, f"at launch the supervisor gives placeholders and a certificate for: {told}")
    return 0


def _start(plan: Plan, program: str, request: BoxRequest, facts: Facts, way: Way) -> NoReturn:
    from nsmbox.protection import guarded_files  # noqa: PLC0415
    from nsmbox.start import launch  # noqa: PLC0415

    launch.check_namespaces(program)
    if plan.programs:
        from nsmbox.host import bridge_programs  # noqa: PLC0415

        plan = replace(plan, notes=(*bridge_programs.look(plan, client=way.program), *plan.notes))
    asked = False
    if not way.yes:
        from nsmbox.consent.confirm import confirm  # noqa: PLC0415

        asked = confirm(plan, home=facts.home)
    programs = guarded_files.of_programs(facts.guarded.programs, facts.directory)
    unprotected = (programs, *_first(facts.guarded.unprotectable), facts.git.unusable)
    for said in (_not_made(plan, facts.home), *unprotected):
        if said and not asked:
            tell(way, said)
    request_additions.remember_worktrees(request)
    _make_links(facts)
    launch.make_state(request.profile, facts.home)
    launch.make_persisted([each.source for each in facts.persisted])
    guarded_files.make(facts.guarded)
    _tell_of_nsm(request, facts, way)
    if _is_macos():
        from nsmbox.start import macos  # noqa: PLC0415

        if plan.secrets:
            raise BoxError(
                "the box has secrets, which nsm gives on Linux only",
                hint="Leave out --secret, and `secrets` of [box] in config.toml.",
            )
        tell(way, "the box has no sessions of nsm, whose supervisor is for Linux alone")
        macos.become(plan)
    place = _supervised(plan, way) if plan.sockets else None
    if plan.secrets or any(" " in rule for rule in plan.network.allow):  # rules for requests
        from nsmbox.start import supervisor  # noqa: PLC0415  # few boxes have some

        plan = supervisor.with_secrets(plan, place)
    sys.stdout.flush()
    launch.become(
        plan,
        program,
        sockets="" if place is None else place.sockets,
        wait=_begin(request, facts, way, program, plan, place),
        tell=lambda text: tell(way, text),
    )


def _first(sentences: tuple[str, ...]) -> tuple[str, ...]:
    """The first of many sentences, whose number whoever works in the project decides."""
    more = len(sentences) - _TOLD_NAMES
    if more <= 0:
        return sentences
    return (*sentences[:_TOLD_NAMES], f"{more} more like these; the screen of a terminal has all")


def _not_made(plan: Plan, home: str, *, all_of_them: bool = False) -> str:
    """A line about what a box cannot make, for those who were not shown its screen."""
    from nsmbox.consent import screen  # noqa: PLC0415  # each way loads what it needs

    names, places = screen.not_made(plan, home)
    if not names:
        return ""
    names.sort(key=_FIRST_TOLD.__contains__, reverse=True)
    if all_of_them:
        told = [*names, *places]
    elif len(names) > _TOLD_NAMES:
        told = [*names[:_TOLD_NAMES], f"and {len(names) - _TOLD_NAMES} more, which --dry-run names"]
    else:
        told = names
    return (
        f"cannot be made in the box, since this computer would run it: {' '.join(told)} "
        "(allow by --unprotect NAME,...)"
    )


def _begin(
    request: BoxRequest, facts: Facts, way: Way, bwrap: str, plan: Plan, place: BoxPlace | None
) -> launch.Wait:
    """Record the box, and have told at its end what it has left."""
    from nsmbox.start import launch, supervisor  # noqa: PLC0415

    protection = _Protection(facts, way, bwrap) if request.protect else None
    lost: list[str] = []

    def tell_lost() -> None:
        if place is not None:
            lost.append(supervisor.without(plan, place))
            tell(way, f"{lost[0]}. End the box, and start it again.")

    def look(mounts: int | None) -> None:
        for said in lost:  # once more, since agents draw over what comes meanwhile
            tell(way, said)
        if place is not None:
            with suppress(Exception):  # the supervisor may be gone
                if said := supervisor.of_ended_processes(place.box.id, way.program):
                    tell(way, said)
        if protection is not None:
            protection.end()
        if mounts is not None:
            from nsmbox.start import unsaved_files  # noqa: PLC0415  # when the box has ended

            begun = request.start or facts.directory
            places = unsaved_files.places(facts.home, facts.directory)
            if said := unsaved_files.keep(mounts, begun, places, facts.home):
                tell(way, said)

    return launch.Wait(
        alive=protection.box.descriptor if protection else None,
        keep=tuple(protection.held.values()) if protection else (),
        afterwards=look,
        give_up=protection.give_up if protection else None,
        watch=place and partial(supervisor.watch, place, tell_lost, name=way.program),
    )


class _Protection:
    """Protection of a box while it runs: its stand-ins, and what is told at its end.

    Attributes:
        box: its record.
        held: descriptors of the directories that it can write, by path: somebody may rename one.
    """

    def __init__(self, facts: Facts, way: Way, bwrap: str) -> None:
        from nsmbox.protection import leftovers, stand_ins  # noqa: PLC0415
        from nsmbox.protection.git_repository import GitReader  # noqa: PLC0415

        git = paths.which("git", facts.variables.get("PATH", ""), *facts.writable)
        self._reader = GitReader.of(bwrap, git)
        self._way = way
        for before in stand_ins.abandoned():
            if said := leftovers.told(before, self._reader, stand_ins=stand_ins.made()):
                tell(way, f"a box was killed with the process that waited for it: {said}")
            tell(way, stand_ins.lost_with_a_killed_box(before.directory))
        repositories = (facts.git, *facts.added_git)
        self._was = leftovers.before(
            facts.directory,
            (*facts.writable, *(path for git in repositories for path in git.shown)),
            facts.guarded.programs,
        )
        if said := leftovers.under_way(self._was):
            tell(way, said)
        self.held = {
            path: os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            for path in facts.writable
        }
        self.box = stand_ins.begin(facts.guarded.stand_ins, self._was)

    def end(self) -> None:
        """Tell what the box has left."""
        from nsmbox.protection import leftovers, stand_ins  # noqa: PLC0415

        for path, held in self.held.items():
            now = os.readlink(f"/proc/self/fd/{held}")
            if now != path and os.path.isdir(now):
                self._was = self._was.moved(path, now)
                stand_ins.moved(path, now)
        try:
            if said := leftovers.told(self._was, self._reader, stand_ins=stand_ins.made()):
                tell(self._way, said)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Forget the box, which has ended or was never there."""
        from nsmbox.protection import stand_ins  # noqa: PLC0415

        stand_ins.end(self.box)


def _is_macos() -> bool:
    return sys.platform == "darwin"


def _make_own(facts: Facts) -> bool:
    from nsmbox.start import launch  # noqa: PLC0415  # each way loads what it needs

    return launch.make_own(facts.writable)


def _make_links(facts: Facts) -> None:
    if facts.links is not None:
        program_links.make(facts.links)


def _supervised(plan: Plan, way: Way) -> BoxPlace | None:
    from nsmbox.start import supervisor  # noqa: PLC0415

    return supervisor.open_place(plan, way.program, partial(tell, way))


def _tell_of_nsm(request: BoxRequest, facts: Facts, way: Way) -> None:
    """Have the agent find nsm among its MCP servers."""
    profile = request.profile
    if not (profile.mcp and facts.state):
        return
    from nsmbox.host import mcp  # noqa: PLC0415

    problem = mcp.keep_entry(profile.mcp, facts.state[0].source)
    if problem:
        tell(way, problem)


def tell(way: Way, text: str) -> None:
    """Tell something beside the output, on stderr."""
    from nsm.cli.render.formats import visible_lines  # noqa: PLC0415  # rarely needed

    lines = f"{way.program}: {visible_lines(text)}\n"
    if sys.stderr.isatty():  # its program may have it without line ends of its own
        lines = "\r" + lines.replace("\n", "\r\n")
    sys.stderr.write(lines)


def _refuse_a_box_in_a_box() -> None:
    if os.path.isdir(TOOLS_DIRECTORY):
        raise BoxError(
            "this is a box already, and no box can be made in one",
            hint="Run the command itself: the box around it protects it, too.",
        )


def _refuse_root(request: BoxRequest, way: Way) -> None:
    if os.geteuid() != 0:
        return
    reason = request.profile.root or "a box of root keeps root's rights on the host"
    raise BoxError(
        f"not as root: {reason}",
        hint=f"Run it as an ordinary user: `runuser -u USER -- {way.program} ...`.",
    )
