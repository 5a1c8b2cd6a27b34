"""Start a box: look up the host's facts, make the plan, ask the person, become the jail."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import NoReturn

from nsm.dataclass import dataclass, replace
from nsmbox.host import lookup, program_links
from nsmbox.host.facts import BoxRequest, Facts
from nsmbox.model.plan import MODES, TOOLS_DIRECTORY, BoxError, Plan
from nsmbox.planning import planning

EXIT_INTERRUPTED = 130

_NETWORKS = {mode: word for word, mode in MODES.items()}
"""Names of a box's network modes, the same as for sessions, which reach no more than the box."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Use of the plan: start, show or check it.

    Attributes:
        program: how the user has called it, for messages.
        yes: nobody is asked.
        dry_run: it is printed, and that is all.
        check: only check what it needs.
        mistake: in the configuration, which is told with the rest of what is checked.
    """

    program: str
    yes: bool = False
    dry_run: bool = False
    check: bool = False
    mistake: BoxError | None = None


def run(request: BoxRequest, way: Way, variables: Mapping[str, str]) -> int:
    """Do what was asked; does not return where a box is started.

    Raises:
        BoxError: it cannot be.
    """
    if way.check:
        from nsmbox.start.check import check  # noqa: PLC0415  # each way loads what it needs

        return check(request, variables, program=way.program, mistake=way.mistake)
    _refuse_root(request, way)
    _refuse_a_box_in_a_box()
    facts = lookup.look(request, variables)
    if not way.dry_run and _make_own(facts):
        facts = lookup.look(request, variables)
    search_path = variables.get("PATH", "")
    program = "" if _is_macos() else lookup.find_bwrap(search_path, facts.directory)
    plan = planning.plan(request, facts)
    for name in request.extra:
        if name not in variables:
            tell(way, f"{name} is not set, so that the box does not have it")
    if not way.dry_run:
        _start(plan, program, request, facts, way)
    return _print(plan, program, facts, way)


def _print(plan: Plan, program: str, facts: Facts, way: Way) -> int:
    from nsm.jail.seccomp import filter_program  # noqa: PLC0415
    from nsmbox.planning import dryrun  # noqa: PLC0415  # each way loads what it needs

    _make_links(facts)  # so that what is printed can be pasted
    if _is_macos():
        from nsmbox.start import macos  # noqa: PLC0415

        sys.stdout.write(macos.command(plan) + "\n")
        return 0
    syscalls = filter_program(os.uname().machine)
    sys.stdout.write(dryrun.command(plan, program, syscalls=syscalls) + "\n")
    if plan.sockets:
        tell(way, f"{dryrun.SOCKETS} stands for a directory that is made at launch")
    if plan.programs:
        tell(way, f"at launch the supervisor is asked to let it start {', '.join(plan.programs)}")
    return 0


def _start(plan: Plan, program: str, request: BoxRequest, facts: Facts, way: Way) -> NoReturn:
    from nsmbox.protection import guarded_files  # noqa: PLC0415
    from nsmbox.start import launch  # noqa: PLC0415

    launch.check_namespaces(program)
    if plan.programs:
        from nsmbox.host import bridge_programs  # noqa: PLC0415

        plan = replace(plan, notes=(*bridge_programs.look(plan, client=way.program), *plan.notes))
    if not way.yes:
        from nsmbox.consent.confirm import confirm  # noqa: PLC0415

        confirm(plan, home=facts.home)
    _make_links(facts)
    launch.make_state(request.profile, facts.home)
    guarded_files.make(facts.guarded)
    _tell_of_nsm(request, facts, way)
    if _is_macos():
        from nsmbox.start import macos  # noqa: PLC0415

        tell(way, "the box has no sessions of nsm, whose supervisor is for Linux alone")
        macos.become(plan)
    sockets = _sockets(plan, way) if plan.sockets else ""
    sys.stdout.flush()
    launch.become(plan, program, sockets=sockets, afterwards=_afterwards(request, facts, way))


def _afterwards(request: BoxRequest, facts: Facts, way: Way) -> Callable[[], None] | None:
    """Tells what the box has left that the host's git would run."""
    if not request.protect:
        return None
    from nsmbox.protection import leftovers  # noqa: PLC0415

    was = leftovers.before(facts.directory, facts.git.common)
    if said := leftovers.under_way(was):
        tell(way, said)

    def look() -> None:
        if said := leftovers.told(was):
            tell(way, said)

    return look


def _is_macos() -> bool:
    return sys.platform == "darwin"


def _make_own(facts: Facts) -> bool:
    from nsmbox.start import launch  # noqa: PLC0415  # each way loads what it needs

    return launch.make_own(facts.directory)


def _make_links(facts: Facts) -> None:
    if facts.links is not None:
        program_links.make(facts.links)


def _sockets(plan: Plan, way: Way) -> str:
    """The directory of its sockets, which the supervisor makes for this process.

    Raises:
        BoxError: there are none, and the box can reach nothing without.
    """
    from nsm import Client  # noqa: PLC0415
    from nsm.wire.errors import NsmError  # noqa: PLC0415

    below = plan.directory.rstrip("/") + "/"
    hides = any(m.kind == "mask" and m.target.startswith(below) for m in plan.mounts)
    try:
        with Client(name=way.program) as client:
            place = client.boxes.open(
                plan.directory,
                profile=plan.profile,
                digest=plan.digest,
                network=_NETWORKS[plan.network.mode],
                allow=plan.network.allow,
                shows_project=not hides,
                programs=plan.programs,
                writable=plan.writable,
            )
    except (NsmError, OSError) as error:
        message = error.message if isinstance(error, NsmError) else str(error)
        if plan.programs:
            raise BoxError(
                f"the box may start programs of the host, which the supervisor does: {message}",
                hint=error.hint if isinstance(error, NsmError) else "`nsm doctor` tells more.",
            ) from error
        if plan.network.mode == "allow":
            raise BoxError(
                f"the box's network is a list, which the supervisor serves: {message}",
                hint=error.hint if isinstance(error, NsmError) else "`nsm doctor` tells more.",
            ) from error
        tell(way, f"the box has no sessions of nsm: {message}")
        return ""
    return place.sockets


def _tell_of_nsm(request: BoxRequest, facts: Facts, way: Way) -> None:
    """Have the agent find nsm among its MCP servers."""
    profile = request.profile
    if not (profile.mcp and facts.state and facts.own):
        return
    from nsmbox.host import mcp  # noqa: PLC0415

    problem = mcp.keep_entry(profile.mcp, facts.state[0].source)
    if problem:
        tell(way, problem)


def tell(way: Way, text: str) -> None:
    """Tell something beside the output, on stderr."""
    from nsm.cli.render.formats import visible_lines  # noqa: PLC0415  # rarely needed

    sys.stderr.write(f"{way.program}: {visible_lines(text)}\n")


def _refuse_a_box_in_a_box() -> None:
    if os.path.isdir(TOOLS_DIRECTORY):
        raise BoxError(
            "this is a box already, and no box can be made in one",
            hint="Run the command itself: the box around it protects it, too.",
        )


def _refuse_root(request: BoxRequest, way: Way) -> None:
    if os.geteuid() != 0:
        return
    reason = request.profile.root or "a box of root's would keep root's rights over the host"
    raise BoxError(
        f"not as root: {reason}",
        hint=f"Run it as an ordinary user: `runuser -u USER -- {way.program} ...`.",
    )
