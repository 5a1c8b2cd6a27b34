"""Boxes on hosts with Nix: the store in place of `/usr`, the way to Nix's daemon, PATH.

`look` finds out what there is; everything else is a pure function of its answer. A store that is
bound as a whole is live: what is built or fetched during the life of the box shows in it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping

from nsm import paths
from nsm.dataclass import dataclass
from nsmbox.host import program_links
from nsmbox.model.plan import Mount, Variable

HEADER_BYTES = 4096
"""Size of a file's beginning: linkers put the program headers and this name in front."""

_PT_INTERP = 3


def loader_of(start: bytes) -> str:
    """The path of the dynamic loader that an ELF program names.

    elf(5): the segment PT_INTERP, in files of 64 bits in the byte order of the kernels on which nsm
    runs.

    Returns:
        "" of a static program, and of what is none of these files.
    """
    if start[:6] != b"\x7fELF\x02\x01" or len(start) < 64:
        return ""
    (offset,) = struct.unpack_from("<Q", start, 32)
    size, count = struct.unpack_from("<HH", start, 54)
    for number in range(count):
        header = offset + number * size
        if header + 40 > len(start):
            return ""
        (kind,) = struct.unpack_from("<I", start, header)
        if kind == _PT_INTERP:
            (place,) = struct.unpack_from("<Q", start, header + 8)
            (length,) = struct.unpack_from("<Q", start, header + 32)
            return start[place : place + length].rstrip(b"\0").decode("utf-8", "surrogateescape")
    return ""


def shebang(start: bytes) -> tuple[str, ...]:
    """The interpreter of a script and its argument, as execve(2) splits its first line.

    Returns:
        () of what is no script.
    """
    if not start.startswith(b"#!"):
        return ()
    line = start[2:].split(b"\n", 1)[0].strip()
    return tuple(line.decode("utf-8", "surrogateescape").split(None, 1))


STORE = "/nix/store"

TOOLS_VARIABLE = "NSM_BOX_TOOLS"
"""Directories of the store, separated by colons, for PATH in boxes: the Nix package sets it."""

STORE_VARIABLE = "NSM_BOX_STORE"
"""Variable with the path of the store, for a package that was built in another store than `STORE`.
"""

TOOLS = (
    *("bash", "ls", "env", "grep", "sed", "awk", "find", "xargs", "diff", "patch", "tar", "gzip"),
    *("xz", "which", "file", "less", "ps", "git", "rg", "fd", "jq", "curl", "make"),
    *("node", "npm", "python3", "uv", "nix", ","),
)
"""Looked up on the caller's PATH where nothing else says what a box has."""

PROGRAMS = ("nix", "nix-build", "nix-env", "nix-shell", "nix-store", ",", "comma")
"""Further programs of a box that also has the host's system."""

LOADERS = (
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux-aarch64.so.1",
)
"""Paths where programs that Nix did not build look for their loader; nix-ld puts one there."""

NIX_LD_VARIABLES = ("NIX_LD", "NIX_LD_LIBRARY_PATH")

MAX_LINKS = 40
"""Symbolic links to follow in one path, as many as the kernel follows (path_resolution(7))."""

MAX_INCLUDES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNix:
    """Nix on the host.

    Attributes:
        state: Nix' state with the daemon's socket in it; "" where there is none.
        kept: directories of `state` that say what is run on the host later (profiles), and what is
            kept from the garbage collector.
        trusted: the entry of `trusted-users` that makes the daemon do anything for this user; "".
        alone: the store has all that the box needs, so that nothing of `/usr` is shown.
        tools: directories of the store, for PATH; () where the host's own programs are shown and no
            package says what there is.
        left_out: programs whose directory has what must not be on PATH.
    """

    store: str = STORE
    state: str = ""
    daemon: bool = False
    kept: tuple[str, ...] = ()
    trusted: str = ""
    alone: bool = False
    tools: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    left_out: tuple[str, ...] = ()


# What follows from it


def mounts(nix: HostNix) -> tuple[Mount, ...]:
    """The store and the way to the daemon; where the store is all there is, `/bin/sh` and so on.

    They belong after the root and before HOME: a store may lie anywhere.
    """
    made = [Mount(kind="ro-bind", source=nix.store, target=nix.store, why="Nix store, live")]
    if nix.state and nix.daemon:
        made.append(Mount(kind="bind", source=nix.state, target=nix.state, why="Nix daemon"))
        made += [
            Mount(kind="ro-bind", source=path, target=path, why="what the host runs later")
            for path in nix.kept
        ]
    elif nix.state:
        made.append(
            Mount(kind="ro-bind", source=nix.state, target=nix.state, why="Nix without a daemon")
        )
    if nix.alone:
        made += [
            Mount(kind="symlink", source=target, target=place, why="from the Nix store")
            for place, target in nix.links
        ]
    return tuple(made)


def path(nix: HostNix) -> tuple[str, ...]:
    """The directories of PATH that are of the store; all of PATH where the store is alone."""
    return nix.tools


def variables(nix: HostNix) -> tuple[Variable, ...]:
    """Variables by which programs find in the store what they expect elsewhere."""
    return tuple(Variable(name=name, value=value) for name, value in nix.variables)


def notes(nix: HostNix, user: str) -> tuple[str, ...]:
    """List the notes for people, before they agree."""
    told: list[str] = []
    if nix.daemon and nix.trusted:
        told.append(
            f"Nix' daemon trusts {user} (trusted-users has {nix.trusted}): code in the box can"
            " become root of this host through it. Take that entry out of nix.conf to have a box"
            " that holds."
        )
    if nix.state and not nix.daemon:
        told.append(
            "Nix has no daemon here, and the store is read-only in the box: `nix shell` can use"
            " what is in the store and can add nothing to it."
        )
    if nix.left_out:
        told.append(
            f"Not on PATH in the box, because gnupg, openssh, age or tailscale lie beside them:"
            f" {', '.join(nix.left_out)}."
        )
    return tuple(told)


# What there is


def look(
    environment: Mapping[str, str],
    command: str,
    *,
    also: Iterable[str] = (),
    programs: Iterable[str] = TOOLS,
    groups: Iterable[str] = (),
    user: str = "",
    root: str = "/",
) -> HostNix | None:
    """Find out what the host's Nix is.

    Args:
        programs: programs to look for on the caller's PATH, unless a package lists them.
        root: where `/bin`, `/usr`, `/etc` and `/lib64` are looked for; tests have another one.
    """
    store = store_of(environment)
    if not store:
        return None
    search = environment.get("PATH", os.defpath)
    state = _existing(os.path.join(os.path.dirname(store), "var/nix"))
    daemon = bool(state) and os.path.exists(os.path.join(state, "daemon-socket/socket"))
    given = tuple(each for each in environment.get(TOOLS_VARIABLE, "").split(":") if each)
    tools: tuple[str, ...]
    left_out: tuple[str, ...]
    if given:
        tools, left_out = given, ()
        if own := in_store(command, store):
            tools = _with(tools, os.path.dirname(own))
        elif interpreter := _interpreter_of(command, _joined(tools, search)):
            tools = _with(tools, os.path.dirname(in_store(interpreter, store)))
    else:
        tools, left_out = _tools(programs, search, store)
    links = _links(tools, store, root)
    # In the box, too, its PATH goes first.
    search = _joined(tools, search)
    alone = {"/bin/sh", "/usr/bin/env"} <= {place for place, _ in links} and not any(
        _needs_host(each, search, store, root) for each in (command, *also)
    )
    if not alone and not given:
        tools, left_out = (), ()  # all of the host's own programs are there
    return HostNix(
        store=store,
        state=state,
        daemon=daemon,
        kept=tuple(
            path
            for path in (os.path.join(state, "profiles"), os.path.join(state, "gcroots"))
            if daemon and os.path.isdir(path)
        ),
        trusted=trusting(
            _configuration(os.path.join(root, "etc/nix/nix.conf")), user, frozenset(groups)
        ),
        alone=alone,
        tools=tools,
        links=links,
        variables=_variables(environment, store, dict(links)) if alone else (),
        left_out=left_out,
    )


def store_of(environment: Mapping[str, str]) -> str:
    """The directory of the store; "" where there is none."""
    return _existing(environment.get(STORE_VARIABLE) or STORE)


def in_store(path: str, store: str = STORE) -> str:
    """The path in the store to which links lead from `path`, under the name that `path` has.

    Where several do, as from a profile to a package, the last. Programs know themselves by that
    name (`ls` of coreutils, wrappers).

    Returns:
        "" if it leads elsewhere, or nowhere.
    """
    name, found = os.path.basename(path), ""
    for _ in range(MAX_LINKS):
        parent = os.path.realpath(os.path.dirname(path))
        path = os.path.join(parent, os.path.basename(path))
        if path.startswith(f"{store}/") and os.path.basename(path) == name:
            found = path
        try:
            path = os.path.join(parent, os.readlink(path))
        except OSError:
            break
    return found if os.path.exists(found) else ""


def trusting(lines: Iterable[str], user: str, groups: frozenset[str]) -> str:
    """Return the entry of `trusted-users` in the lines of a `nix.conf` that covers this user, or
    ""."""
    entries: list[str] = []
    for line in lines:
        key, is_setting, value = line.partition("#")[0].partition("=")
        if is_setting and key.strip() == "trusted-users":
            entries = value.split()
        elif is_setting and key.strip() == "extra-trusted-users":
            entries = entries + value.split()
    for entry in entries:
        if entry in {"*", user} or (entry.startswith("@") and entry[1:] in groups):
            return entry
    return ""


def _existing(path: str) -> str:
    return path if os.path.isdir(path) else ""


def _joined(tools: tuple[str, ...], search: str) -> str:
    return ":".join((*tools, search))


def _with(tools: tuple[str, ...], directory: str) -> tuple[str, ...]:
    """Add a directory, unless it is listed already or holds keys."""
    if not directory or directory in tools or _holds_keys(directory):
        return tools
    return (*tools, directory)


def _holds_keys(directory: str) -> bool:
    try:
        return any(map(program_links.holds_keys, os.listdir(directory)))
    except OSError:
        return False


def _tools(
    programs: Iterable[str], search: str, store: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The packages' own directories of programs, and the programs whose directory cannot be shown.

    A profile of Nix has everything in one directory, gnupg and openssh too; the package does not.
    """
    tools: tuple[str, ...] = ()
    left_out: list[str] = []
    for program in programs:
        found = in_store(paths.which(program, search) or "", store)
        if not found:
            continue
        directory = os.path.dirname(found)
        if _holds_keys(directory):
            left_out.append(program)
        else:
            tools = _with(tools, directory)
    return tools, tuple(left_out)


def _links(tools: tuple[str, ...], store: str, root: str) -> tuple[tuple[str, str], ...]:
    """Yield the fixed paths that scripts and foreign programs expect, by path in the store."""
    search = ":".join(tools)
    wanted = {
        "/bin/sh": paths.which("sh", search) or paths.which("bash", search) or "",
        "/usr/bin/env": paths.which("env", search) or "",
        **dict.fromkeys(LOADERS, ""),
    }
    found: list[tuple[str, str]] = []
    for place, tool in wanted.items():
        if target := tool or in_store(os.path.join(root, place[1:]), store):
            found.append((place, target))
    return tuple(found)


def _start(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(HEADER_BYTES)
    except OSError:
        return b""


def _interpreter_of(path: str, search: str) -> str:
    """Return the interpreter that the kernel runs for a script, by way of `env`, or ""."""
    words = shebang(_start(path))
    if len(words) == 2 and os.path.basename(words[0]) == "env":
        name = next(
            (word for word in words[1].split() if not word.startswith("-") and "=" not in word), ""
        )
        return paths.which(name, search) or ""
    return words[0] if words else ""


def _needs_host(command: str, search: str, store: str, root: str) -> bool:
    """Return whether the command runs on something outside of the store."""
    path = command
    for _ in range(MAX_LINKS):
        if in_store(path, store):
            return False
        interpreter = _interpreter_of(path, search)
        if not interpreter:
            break
        if interpreter in {"/bin/sh", "/usr/bin/env"}:
            return False  # these there are in every box
        path = interpreter
    loader = loader_of(_start(path))
    return bool(loader) and not in_store(os.path.join(root, loader[1:]), store)


def _variables(
    environment: Mapping[str, str], store: str, links: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    values: dict[str, str] = {}
    if shell := environment.get("SHELL", ""):
        values["SHELL"] = in_store(shell, store) or links["/bin/sh"]
    archive = os.path.realpath(environment.get("LOCALE_ARCHIVE", ""))
    if archive.startswith(f"{store}/"):
        values["LOCALE_ARCHIVE"] = archive
    entries = map(os.path.realpath, environment.get("TERMINFO_DIRS", "").split(":"))
    if terminals := [each for each in entries if each.startswith(f"{store}/")]:
        values["TERMINFO_DIRS"] = ":".join(terminals)
    if any(place in links for place in LOADERS):
        for name in NIX_LD_VARIABLES:
            named = map(os.path.realpath, filter(None, environment.get(name, "").split(":")))
            if inside := [each for each in named if each.startswith(f"{store}/")]:
                values[name] = ":".join(inside)
    return tuple(sorted(values.items()))


def _configuration(path: str, depth: int = 0) -> list[str]:
    """The lines of a `nix.conf`, with those of the files that it includes."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    told: list[str] = []
    for line in lines:
        words = line.split()
        if len(words) == 2 and words[0] in {"include", "!include"} and depth < MAX_INCLUDES:
            told += _configuration(os.path.join(os.path.dirname(path), words[1]), depth + 1)
        else:
            told.append(line)
    return told
