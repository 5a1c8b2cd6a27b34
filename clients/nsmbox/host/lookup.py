"""Looks up on the host what a box's plan needs to know; changes nothing and asks nobody."""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence

from nsm import paths
from nsm.dataclass import replace
from nsm.jail import etc_files
from nsmbox.host import added_directories, mcp, nix_host, nsm_itself, program_links
from nsmbox.host.facts import BoxRequest, Facts, HostPath, Tool
from nsmbox.host.tools import ProgramFinder
from nsmbox.model.plan import LINKS_DIRECTORY, TOOLS_DIRECTORY, BoxError
from nsmbox.protection import git_repository, guarded_files, hidden_paths, secrets

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")

_ETC = (
    *("passwd", "group", "hosts", "nsswitch.conf", "resolv.conf", "ssl", "static", "nix"),
    # What the system's own programs need: which of several a name stands for, where libraries
    # are, certificates of other distributions, names of ports, the time zone.
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ca-certificates", "pki"),
    *("crypto-policies", "host.conf", "gai.conf", "services", "protocols", "localtime", "timezone"),
    *("os-release", "mime.types", "terminfo", "inputrc", "bash.bashrc", "bashrc", "fonts"),
)

MAX_HOSTS_BYTES = 8 << 20
"""Largest part of /etc/hosts that a box shows; long lists of advertisers have 5 MB."""

_STANDARD = ("/usr/local/bin", "/usr/bin", "/bin")
"""Whose programs every box has."""

_PROGRAM_PLACES = ("/usr/local/bin", "/usr/bin", "/usr/local/sbin", "/usr/sbin")


def look(request: BoxRequest, variables: Mapping[str, str]) -> Facts:
    """The facts for one box."""
    named_home = paths.home()
    home = os.path.realpath(named_home)
    known = secrets.look(named_home, variables, os.geteuid())
    directory = secrets.working_directory(known)
    kept = [os.path.join(home, state.box) for state in request.profile.state]
    added, added_notes = added_directories.look(request.add, directory, known, home, kept=kept)
    writable = (directory, *(each.path for each in added if each.writable))
    itself = nsm_itself.find()
    nix = _nix(request, variables, directory, itself)
    alone = nix is not None and nix.alone
    system = _system(alone=alone)
    roots = (
        *(entry.path for entry in system if not entry.link),
        *((nix.store,) if nix else ()),
        directory,
    )
    standard = () if alone else _program_directories(variables, system)
    programs = ProgramFinder(
        variables=variables,
        home=home,
        directory=directory,
        writable=writable,
        roots=roots,
        standard=standard,
        known=known,
    )
    shell = _shell(variables, roots)
    program, arguments = _command(request, shell)
    if program in nsm_itself.PROGRAMS:
        tool = _own_program(program)
    else:
        tool = _program(program, request, programs, directory)
    git = paths.which("git", variables.get("PATH", ""), *writable)
    places = {each.path: each.writable for each in added}
    repositories = [git_repository.look(path, known, git, variables, places) for path in writable]
    state = tuple(
        HostPath(
            path=os.path.join(home, state.box),
            source=os.path.realpath(os.path.join(home, state.host)),
        )
        for state in request.profile.state
    )
    persisted = tuple(_persisted(request.persist, home, directory))
    guarded: list[guarded_files.Guarded] = []
    standing: frozenset[str] = frozenset()
    if request.protect:
        from nsmbox.protection import stand_ins  # noqa: PLC0415 - not where nothing is protected

        standing = stand_ins.made()
    for path, repository in zip(writable, repositories, strict=True) if request.protect else ():
        found = guarded_files.look(
            path,
            repository,
            homes=known.homes,
            paths=request.protect_paths if path == directory else (),
            others=[other for other in writable if other != path],
            kept=[each.source for each in (*state, *persisted)],
            unprotected=request.unprotected if path == directory else (),
            standing=standing,
            git=git,
            variables=variables,
        )
        if path != directory:
            where = secrets.printable(path)
            found = replace(
                found,
                notes=tuple(f"In {where}: {note}" for note in found.notes),
                unprotectable=tuple(f"In {where}: {note}" for note in found.unprotectable),
            )
            found = guarded_files.joined((found, guarded_files.of_worktrees(path)))
        if repository.git_directory:
            make = request.profile.name == "claude" and path == directory
            found = guarded_files.with_claude_worktrees(found, path, make=make)
        guarded.append(found)
    every = guarded_files.joined(guarded)
    tools = _tools(tool, request, programs, nix)
    git_program = ""
    if git and not alone and any(path.endswith("/config") for path in every.read_only):
        of_user = next((each.path for each in tools if each.name == "git"), "")
        git_program = of_user or f"{LINKS_DIRECTORY}/git"
    place = _place_in_box(tool, program, nix)
    if git_program and program == "git":
        place = f"{TOOLS_DIRECTORY}/git"
    hidden = hidden_paths.look(
        request.hide,
        directory,
        shown=(directory, *(each.path for each in added)),
        writable=writable,
        home=home,
    )
    return Facts(
        home=home,
        home_link=named_home if named_home != home else "",
        directory=directory,
        variables=dict(variables),
        system=system,
        state=state,
        persisted=persisted,
        links=program_links.look(standard) if standard else None,
        command=(place, *arguments),
        tools=tools,
        forbidden=() if alone else tuple(sorted(_forbidden())),
        shown=tuple(_shown(request, variables, home, roots, known)),
        secrets=known,
        added=added,
        hidden=hidden,
        git=repositories[0],
        added_git=tuple(repositories[1:]),
        guarded=every,
        shell=shell,
        git_program=git_program,
        own=itself,
        nix=nix,
        notes=(*added_notes, *(nix_host.notes(nix, _user()) if nix else ())),
    )


def _persisted(names: Sequence[str], home: str, directory: str) -> Iterator[HostPath]:
    """Yield the directories of HOME that boxes of this project keep, and no other box sees."""
    project = hashlib.sha256(os.fsencode(directory)).hexdigest()[:32]
    place = os.path.join(os.path.realpath(paths.cache_dir()), "box-caches", project)
    for name in sorted(set(names)):
        if any(name.startswith(f"{outer}/") for outer in names):
            continue  # it is kept with the other one
        target = os.path.join(home, name)
        if secrets.within(target, directory) or secrets.within(directory, target):
            continue  # the working directory itself is there
        # Without slashes: in an outer one that was kept before, a box could have put a link.
        flat = name.replace("%", "%25").replace("/", "%2f")
        yield HostPath(path=target, source=os.path.join(place, flat))


def _place_in_box(tool: Tool, program: str, nix: nix_host.HostNix | None) -> str:
    """Path by which the box finds the program that it runs."""
    if nix and nix.alone and (stored := nix_host.in_store(tool.place, nix.store)):
        return stored
    if tool.linked and "/" not in program:
        return f"{TOOLS_DIRECTORY}/{tool.name}"
    return tool.environment or (tool.path if tool.shown else tool.place)


def _tools(
    tool: Tool, request: BoxRequest, programs: ProgramFinder, nix: nix_host.HostNix | None
) -> tuple[Tool, ...]:
    """Find the profile's tools and the command outside of the system's directories, with their
    interpreters."""
    wanted = [tool]
    if nix is None or not nix.alone:  # else PATH has all there is
        names = (*request.profile.tools, *(nix_host.PROGRAMS if nix else ()))
        named = [found for found in map(programs.find, names) if found]
        outside = [each for each in named if each.linked or each.shown]
        needed = [other for each in (*outside, tool) for other in programs.needs(each)]
        unnamed = (replace(each, name=each.place) for each in programs.environments())
        wanted = [*needed[::-1], *outside, *unnamed, tool]  # of one name, the last
    tools = {each.name: each for each in wanted if each.linked or each.shown}
    return tuple(tools[name] for name in sorted(tools))


def _nix(
    request: BoxRequest,
    variables: Mapping[str, str],
    directory: str,
    itself: nsm_itself.NsmPaths,
) -> nix_host.HostNix | None:
    """The host's Nix, if there is one, for what is asked to run."""
    if not nix_host.store_of(variables):
        return None
    program, _ = _command(request, variables.get("SHELL") or "/bin/sh")
    if "/" in program:
        place = os.path.join(request.start or directory, program)
    else:
        place = paths.which(program, variables.get("PATH", "")) or ""
    return nix_host.look(
        variables,
        place,
        also=(itself.python,),
        user=_user(),
        groups=map(_group, os.getgroups()),
    )


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _group(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)


def _program_directories(
    variables: Mapping[str, str], system: tuple[HostPath, ...]
) -> tuple[str, ...]:
    """The system's directories of programs: the caller's, in their order, and the usual ones."""
    roots = tuple(entry.path for entry in system if not entry.link)
    named = (*variables.get("PATH", "").split(":"), *_STANDARD)
    real = dict.fromkeys(os.path.realpath(path) for path in named if os.path.isabs(path))
    return tuple(
        path
        for path in real
        if os.path.isdir(path) and any(path.startswith(f"{root}/") for root in roots)
    )


def find_bwrap(search_path: str, *writable: str) -> str:
    """The path of the bwrap that is there.

    Args:
        writable: directories in which boxes can write: what lies there is not run outside of them.

    Raises:
        BoxError: there is none.
    """
    if path := paths.which("bwrap", search_path, *writable):
        return path
    raise BoxError(
        "bwrap is not on PATH, and boxes are made by it",
        hint="Install bubblewrap (`apt install bubblewrap`, `dnf install bubblewrap`).",
    )


def _command(request: BoxRequest, shell: str) -> tuple[str, tuple[str, ...]]:
    profile = request.profile
    if profile.program:
        return profile.program, (*profile.arguments, *mcp.arguments(profile.mcp), *request.command)
    if request.command:
        return request.command[0], request.command[1:]
    return shell, ()


def _program(program: str, request: BoxRequest, programs: ProgramFinder, directory: str) -> Tool:
    if "/" in program:
        path = os.path.normpath(os.path.join(request.start or directory, program))
        tool = None
        if os.path.isfile(path) and os.access(path, os.X_OK):
            if programs.is_for_boxes(path):
                tool = programs.at(path)
            else:
                programs.hidden[program] = os.path.realpath(path)
    else:
        tool = programs.find(program)
    if tool is None:
        raise _not_found(program, request, programs, directory)
    if program_links.is_forbidden(tool.name) or program_links.is_forbidden(
        os.path.basename(tool.path)
    ):
        raise BoxError(
            f"{tool.name} must not be in a box: it handles keys, or leads out of the box",
            hint="Run it outside.",
            exit_code=126,
        )
    return tool


def _not_found(
    program: str, request: BoxRequest, programs: ProgramFinder, directory: str
) -> BoxError:
    hint = request.profile.install or "Install it, or put its directory on PATH."
    what = "was not found"
    if "/" not in program:
        what += " in the directories that PATH names"
    elif os.path.exists(os.path.join(request.start or directory, program)):
        what, hint = "cannot be executed", f"Make it a program: chmod +x {shlex.quote(program)}"
    else:
        hint = "Look at how it is spelled; the path is taken from the working directory."
    if hidden := programs.hidden.get(program):
        what = f"was found only as {hidden}, which no box shows"
        hint = request.profile.install or "Install it elsewhere, or run it outside."
    return BoxError(f"{program} {what}", hint=hint, exit_code=127)


def _own_program(name: str) -> Tool:
    """A program of nsm's, as every box has it; the host's is made for the host."""
    place = f"{TOOLS_DIRECTORY}/{name}"
    return Tool(name=name, place=place, path=place, linked=False)


def _system(*, alone: bool) -> tuple[HostPath, ...]:
    etc = [f"/etc/{name}" for name in _ETC]
    etc += () if alone else etc_files.linked_files(etc)
    entries = [] if alone else [_entry(path) for path in _SYSTEM]
    # The content of links there, whose chains lead all over the host, stands in their place.
    files = [
        HostPath(path=path, source=os.path.realpath(path), text=_hosts(path))
        for path in etc
        if os.path.exists(path)
    ]
    return (*(entry for entry in entries if entry is not None), *files)


def _hosts(path: str) -> bytes | None:
    """Read the names of hosts, to which the box's own is added (on macOS it has none)."""
    if path != "/etc/hosts" or sys.platform == "darwin":
        return None
    try:
        with open(path, "rb") as file:
            return file.read(MAX_HOSTS_BYTES)
    except OSError:
        return None


def _entry(path: str) -> HostPath | None:
    if os.path.islink(path):
        return HostPath(path=path, link=os.readlink(path))
    if os.path.isdir(path):
        return HostPath(path=path, source=path)
    return None


def _forbidden() -> set[str]:
    found: set[str] = set()
    for place in _PROGRAM_PLACES:
        try:
            names = os.listdir(place)
        except OSError:
            continue
        found.update(
            os.path.realpath(os.path.join(place, name))
            for name in names
            if program_links.is_forbidden(name)
        )
    # What a link leads to may be a program of many names, most of them harmless.
    return {
        path
        for path in found
        if path.startswith("/usr/") and program_links.is_forbidden(os.path.basename(path))
    }


def _shown(
    request: BoxRequest,
    variables: Mapping[str, str],
    home: str,
    roots: tuple[str, ...],
    known: secrets.Known,
) -> list[HostPath]:
    """Paths of certificates that variables name, and what is shown of HOME."""
    named = [variables.get(name, "") for name in ("SSL_CERT_FILE", "NIX_SSL_CERT_FILE")]
    shown = (*request.profile.show, *request.show)
    asked = [os.path.join(home, path.removeprefix("~/")) for path in shown]
    wanted = [path for path in (*named, *asked) if os.path.isabs(path) and os.path.exists(path)]
    entries = [
        HostPath(path=path, source=os.path.realpath(path))
        for path in dict.fromkeys(wanted)
        if not any(path.startswith(root.rstrip("/") + "/") for root in roots)
    ]
    for entry in entries:
        secrets.check_shown(known, entry.path, entry.source)
    return entries


def _shell(variables: Mapping[str, str], roots: tuple[str, ...]) -> str:
    """The caller's shell where the box has it, else one that every system has."""
    shell = variables.get("SHELL", "")
    path = os.path.realpath(shell)
    if os.path.isabs(shell) and any(path.startswith(f"{root}/") for root in roots):
        return shell
    return "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
