"""Making of a plan from a request and facts; pure.

The order of mounts: the system, what is the box's own, HOME as memory, what is shown of it, the
working directory, and what lies over that: masks of secrets last, so that nothing uncovers them.
"""

from __future__ import annotations

import os
import shlex

from nsm.dataclass import replace
from nsm.jail import proxyvariables
from nsmbox.consent import readable
from nsmbox.host import added_directories, mcp, nix_host, nsm_itself
from nsmbox.host.facts import BoxRequest, Facts, HostPath, Tool
from nsmbox.model.plan import (
    LINKS_DIRECTORY,
    RUN_DIRECTORY,
    TOOLS_DIRECTORY,
    BoxError,
    BoxLimits,
    Mount,
    Plan,
    Variable,
)
from nsmbox.planning import bwrap, rules
from nsmbox.protection import git_repository, guarded_files, hidden_paths, secrets


def plan(request: BoxRequest, facts: Facts) -> Plan:
    """The box that was asked for."""
    if request.secrets and request.network.mode != "allow":
        raise BoxError(
            "secrets need a list of allowed hosts: nsm's proxy puts them into requests, and only a "
            "list leads through the proxy",
            hint="Allow the hosts of the secret: --network HOST,...",
            exit_code=2,
        )
    own = (*_system(facts, request.limits), *_own(facts, request.limits))
    shown = (*own, *_home(facts), *_work(facts))
    hidden = hidden_paths.mounts(facts.hidden)
    mounts = (*shown, *_masks(facts), *_uncovered(secrets.masks(facts.secrets, shown), hidden))
    few = request.limits.descriptors < bwrap.descriptors(mounts)
    command = _command(request, facts, few_descriptors=few)
    made = Plan(
        profile=request.profile.name,
        mounts=mounts,
        variables=_variables(request, facts),
        network=request.network,
        command=command,
        starter=len(command) - len(facts.command),
        directory=facts.directory,
        start=request.start,
        # What fits on a small screen are the first ones.
        notes=(
            *facts.hidden.notes,
            *facts.guarded.unprotectable,
            *facts.guarded.notes,
            *facts.git.notes,
            *facts.notes,
        ),
        programs=tuple(sorted(set(request.programs))),
        limits=request.limits,
        secrets=tuple(sorted(set(request.secrets))),
        git_unusable=bool(facts.git.unusable),
    )
    told = rules.mounts(made, request.profile, facts.home)
    return replace(made, mounts=(*made.mounts, *told))


# ------------------------------------------------------------------------------------- mounts


def _system(facts: Facts, limits: BoxLimits) -> list[Mount]:
    return [
        *(_entry(entry) for entry in facts.system),
        Mount(kind="proc", target="/proc"),
        Mount(kind="dev", target="/dev", size_mb=limits.shm_mb),
        _own_files("/tmp", limits),  # noqa: S108
        Mount(kind="dir", target="/var"),
        # No link to the other: below one, bwrap makes no directories, and projects lie there, too.
        _own_files("/var/tmp", limits),  # noqa: S108
    ]


def _own_files(target: str, limits: BoxLimits) -> Mount:
    return Mount(
        kind="tmpfs", target=target, mode=0o1777, size_mb=limits.tmp_mb, why="the box's own"
    )


def _entry(entry: HostPath) -> Mount:
    if entry.link:
        return Mount(kind="symlink", target=entry.path, source=entry.link)
    if entry.text is not None:
        # On a line of its own after the host's, whose last one may lack its end.
        data = entry.text + f"\n127.0.0.1 {bwrap.HOSTNAME}\n".encode()
        return Mount(kind="ro-file", target=entry.path, data=data, mode=0o444, why="the system")
    return Mount(kind="ro-bind", target=entry.path, source=entry.source, why="the system")


def _own(facts: Facts, limits: BoxLimits) -> list[Mount]:
    """List the mounts outside of HOME, HOME itself as memory, and the paths that programs need of
    it."""
    home = [
        Mount(
            kind="tmpfs",
            target=facts.home,
            mode=0o700,
            size_mb=limits.home_mb,
            why="HOME, empty",
        )
    ]
    if facts.home_link:
        home.append(Mount(kind="symlink", target=facts.home_link, source=facts.home))
    kept = [
        Mount(
            kind="bind",
            target=each.path,
            source=each.source,
            linkless=True,
            made=True,
            why="kept for boxes of this project",
        )
        for each in facts.persisted
    ]
    return [
        *home,
        *kept,
        # A store of a user's own may lie below HOME.
        *(nix_host.mounts(facts.nix) if facts.nix else ()),
        Mount(kind="dir", target=RUN_DIRECTORY),
        Mount(kind="dir", target=TOOLS_DIRECTORY),
        *_links(facts),
        *_tools(facts),
        *nsm_itself.mounts(facts.own, _system_roots(facts)),
    ]


def _system_roots(facts: Facts) -> tuple[str, ...]:
    store = (facts.nix.store,) if facts.nix else ()
    return (*(entry.path for entry in facts.system if not entry.link), *store)


def _links(facts: Facts) -> list[Mount]:
    if facts.links is None:
        return []
    why = "names of the system's programs"
    return [Mount(kind="ro-bind", target=LINKS_DIRECTORY, source=facts.links.path, why=why)]


def _tools(facts: Facts) -> list[Mount]:
    tools = facts.tools
    shown: dict[str, list[str]] = {}
    for tool in tools:
        for path in tool.shown:
            shown.setdefault(path, []).append(tool.name)
    return [
        *(
            # Parents before what lies in them.
            Mount(kind="ro-bind", target=path, source=path, why=" ".join(shown[path]))
            for path in sorted(shown)
        ),
        *(
            _named(tool)
            for tool in tools
            if tool.linked and not (tool.name == "git" and facts.git_program)
        ),
        *_git(facts),
    ]


def _git(facts: Facts) -> list[Mount]:
    if not facts.git_program:
        return []
    return [
        Mount(
            kind="ro-file",
            target=f"{TOOLS_DIRECTORY}/git",
            data=rules.script(facts.git_program),
            mode=0o555,
            why="git, which says why it cannot write its configuration",
        )
    ]


def _named(tool: Tool) -> Mount:
    target = f"{TOOLS_DIRECTORY}/{tool.name}"
    if not tool.environment:
        return Mount(kind="symlink", target=target, source=tool.path)
    # By a link it would not find the environment that it is of.
    data = f'#!/bin/sh\nexec {shlex.quote(tool.environment)} "$@"\n'
    return Mount(kind="ro-file", target=target, data=os.fsencode(data), mode=0o555)


def _home(facts: Facts) -> list[Mount]:
    return [
        *(
            Mount(
                kind="bind",
                target=state.path,
                source=state.source,
                made=True,
                why="what the agent keeps",
            )
            for state in facts.state
        ),
        *(
            Mount(kind="ro-bind", target=one.path, source=one.source, why="shown on request")
            for one in facts.shown
        ),
        Mount(
            kind="file",
            target=f"{facts.home}/.gitconfig",
            data=git_repository.configuration(facts.git.identity),
            mode=0o644,
            why="who commits, and nothing else of git's configuration",
        ),
        *_ignored(facts),
    ]


def _ignored(facts: Facts) -> list[Mount]:
    """Have git in the box leave out the stand-ins that it would list: no directory is listed."""
    names = [
        os.path.relpath(each.path, facts.directory)
        for each in facts.guarded.stand_ins
        if each.kind != "directory" or each.private
    ]
    if not names:
        return []
    return [
        Mount(
            kind="file",
            target=f"{facts.home}/.config/git/ignore",
            data=os.fsencode("".join(f"/{name}\n" for name in names)),
            mode=0o644,
            why="what nsm keeps from being made",
        )
    ]


def _work(facts: Facts) -> list[Mount]:
    """List the mounts of the user's directories: outer ones first, and what is protected over the
    rest."""
    places = facts.places
    shown = [
        Mount(
            kind="bind" if writable else "ro-bind",
            target=path,
            source=path,
            linkless=True,
            why=_why_shown(path, facts),
        )
        for path, writable in places.items()
    ]
    held = [
        Mount(kind="bind", target=path, source=path, linkless=True, why="cannot be renamed")
        for path in (*_leading_to(facts), *facts.hidden.held)
    ]
    over = {
        mount.target: mount
        for mount in (*held, *guarded_files.mounts(facts.guarded))
        # What keeps a directory in its place would make it changeable in one that is read-only.
        if mount.kind == "ro-bind"
        or (mount.target not in places and added_directories.is_writable(places, mount.target))
    }
    return sorted([*shown, *over.values()], key=lambda mount: mount.target)


def _why_shown(path: str, facts: Facts) -> str:
    if path == facts.directory:
        return "the working directory"
    return "added" if any(path == each.path for each in facts.added) else "the repository"


def _leading_to(facts: Facts) -> set[str]:
    """Directories in which the box writes, on the way to what it must not: with another one in its
    place, that would be somewhere else."""
    kept = (*facts.secrets.own, *(each.path for each in facts.added if not each.writable))
    return {path for directory in facts.writable for path in secrets.leading_to(kept, directory)}


def _uncovered(masks: tuple[Mount, ...], hidden: tuple[Mount, ...]) -> tuple[Mount, ...]:
    """All of these but those that lie in a directory that is hidden as a whole: nothing can be
    mounted there."""
    closed = [mount.target for mount in (*masks, *hidden) if not mount.masks_file]
    return tuple(
        mount
        for mount in (*hidden, *masks)
        if not any(secrets.within(mount.target, path) and mount.target != path for path in closed)
    )


def _masks(facts: Facts) -> list[Mount]:
    return [
        Mount(kind="mask", target=path, masks_file=True, why="not for boxes")
        for path in facts.forbidden
    ]


# ---------------------------------------------------------------------- variables and command


def _variables(request: BoxRequest, facts: Facts) -> tuple[Variable, ...]:
    profile = request.profile
    values = {name: value.replace("{home}", facts.home) for name, value in profile.set.items()}
    values["PATH"] = ":".join(_search_path(facts))
    if "SHELL" in facts.variables:
        values["SHELL"] = facts.shell
    if facts.nix is not None:
        values |= {variable.name: variable.value for variable in nix_host.variables(facts.nix)}
    values |= _of_network(request)
    values |= {variable.name: variable.value for variable in nsm_itself.variables()}
    values |= mcp.told_by_variables(profile.mcp)
    if own := sorted(values.keys() & request.set.keys()):
        raise BoxError(
            f"{own[0]} cannot be set: the box has a value of its own for it",
            hint="Set it inside: nsm box -- env NAME=VALUE COMMAND",
            exit_code=2,
        )
    values |= request.set
    passed = {
        name: facts.variables[name]
        for name in (*profile.variables, *request.extra)
        if name in facts.variables and name not in values
    }
    variables = [Variable(name=name, value=value) for name, value in values.items()]
    variables += [
        Variable(name=name, value=value, inherited=True, secret=readable.names_secret(name))
        for name, value in passed.items()
    ]
    return tuple(sorted(variables, key=lambda variable: variable.name))


def _search_path(facts: Facts) -> tuple[str, ...]:
    stored = nix_host.path(facts.nix) if facts.nix is not None else ()
    if facts.nix is not None and facts.nix.alone:
        return stored
    names = (LINKS_DIRECTORY,) if facts.links else ()
    return (TOOLS_DIRECTORY, *stored, *names)


def _of_network(request: BoxRequest) -> dict[str, str]:
    match request.network.mode:
        case "host":
            return {}
        case "none":
            return dict(proxyvariables.WITHOUT_NETWORK)
        case "allow":
            return proxyvariables.of_a_box(proxyvariables.PROXY_PORT)


def _command(request: BoxRequest, facts: Facts, *, few_descriptors: bool) -> tuple[str, ...]:
    # bwrap would die of the terminal's SIGINT and take the box along, so it starts with some
    # ignored and some blocked (`launch`, `relay`), which the starter gives back.
    proxy = request.network.mode == "allow"
    most = request.limits.descriptors if few_descriptors else None
    return nsm_itself.starter(facts.command, proxy=proxy, descriptors=most)
