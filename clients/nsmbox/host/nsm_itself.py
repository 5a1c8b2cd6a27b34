"""nsm itself in a box: its Python, its packages, the programs `nsm` and `nsm-mcp`.

The programs are at the same place in every box, whatever way nsm is installed on the host: what
keeps configuration between boxes can name them. The environment that nsm is installed in is not
shown; it may be a project's own, with anything in it.
"""

from __future__ import annotations

import os
import sys

import nsm
import nsmbox
from nsm.dataclass import dataclass
from nsm.jail import proxyvariables
from nsmbox.model.plan import (
    CONTROL_SOCKET,
    PROXY_SOCKET,
    RUN_DIRECTORY,
    TOOLS_DIRECTORY,
    BoxError,
    Mount,
    Variable,
)

PYTHON = f"{RUN_DIRECTORY}/python"
"""In a box: a link to the Python that nsm runs with."""

LIBRARY = f"{RUN_DIRECTORY}/lib"
"""In a box: where that Python finds nsm."""

MCP_PROGRAM = f"{TOOLS_DIRECTORY}/nsm-mcp"
"""In a box: what MCP clients start."""

_STARTER = f"{LIBRARY}/nsmbox/start/inside.py"

PROGRAMS = {"nsm": "nsm.cli.main", "nsm-mcp": "nsm.shim"}
"""Names in every box, whatever they are on the host, and the modules of nsm that they run."""

_NEEDED = ("cbor2",)
_OF_USE = ("prompt_toolkit", "wcwidth")  # of `nsm attach` alone

_VARIABLES = (("NSM_AUTOSTART", "0"), ("NSM_SOCKET", CONTROL_SOCKET))


@dataclass(frozen=True, slots=True, kw_only=True)
class NsmPaths:
    """Parts of nsm on the host; paths are real ones.

    Attributes:
        library: its standard library, and its shared library where it has one.
    """

    python: str
    library: tuple[str, ...]
    packages: tuple[tuple[str, str], ...]


def find() -> NsmPaths:
    """Find nsm on this host."""
    packages = {each.__name__: os.path.realpath(each.__path__[0]) for each in (nsm, nsmbox)}
    for name in (*_NEEDED, *_OF_USE):
        for entry in sys.path:
            # `importlib.util` takes longer to import than this to look.
            if os.path.isfile(os.path.join(entry, name, "__init__.py")):
                packages[name] = os.path.realpath(os.path.join(entry, name))
                break
    standard = os.path.dirname(os.path.realpath(os.__file__))
    if not os.path.isdir(standard) or not all(
        os.path.isdir(packages.get(name, "")) for name in ("nsm", *_NEEDED)
    ):
        raise BoxError(
            "a box has nsm in it, and nsm's modules are no files here",
            hint="Install nsm as files, not as a zip archive.",
        )
    return NsmPaths(
        python=_python(),
        library=(standard, *_shared_library()),
        packages=tuple(packages.items()),
    )


def _python() -> str:
    """The program that runs, not a link to it or what wraps it (virtual environments, Nix)."""
    try:
        return os.readlink("/proc/self/exe")
    except OSError:
        return os.path.realpath(sys.executable)


def _shared_library() -> tuple[str, ...]:
    """`libpython` where this Python is no program of one piece, as pyenv and conda may build it."""
    try:
        with open(
            "/proc/self/maps", encoding=sys.getfilesystemencoding(), errors="surrogateescape"
        ) as maps:
            lines = maps.read().splitlines()
    except OSError:
        return ()
    # proc_pid_maps(5): address, permissions, offset, device, inode, path.
    paths = {line.split(None, 5)[-1] for line in lines if "/libpython" in line}
    return tuple(sorted(os.path.realpath(path) for path in paths if os.path.isfile(path)))


def mounts(own: NsmPaths, shown: tuple[str, ...] = ("/usr", "/nix/store")) -> tuple[Mount, ...]:
    """List the mounts that show nsm in a box, to lie over an empty home directory.

    Args:
        shown: directories of the host that the box has at their own places anyway.
    """
    why = "nsm's own Python"
    return (
        *(
            Mount(kind="ro-bind", target=path, source=path, why=why)
            for path in (own.python, *own.library)
            if not any(path == place or path.startswith(f"{place}/") for place in shown)
        ),
        *(
            Mount(kind="ro-bind", target=f"{LIBRARY}/{name}", source=path, why="nsm itself")
            for name, path in own.packages
        ),
        Mount(kind="symlink", target=PYTHON, source=own.python, why=why),
        *(
            Mount(
                kind="ro-file",
                target=f"{TOOLS_DIRECTORY}/{name}",
                data=_program(module),
                mode=0o555,
                why="sessions from inside the box",
            )
            for name, module in PROGRAMS.items()
        ),
    )


def variables() -> tuple[Variable, ...]:
    """Variables that lead nsm's programs to the box's own socket, so that they start no supervisor
    in it.
    """
    return tuple(Variable(name=name, value=value) for name, value in _VARIABLES)


def starter(
    command: tuple[str, ...], *, proxy: bool, descriptors: int | None = None
) -> tuple[str, ...]:
    """A command, started by `nsmbox.start.inside`.

    Args:
        descriptors: limit that only the starter can set; None if bwrap can have it, too.
    """
    limit = ("--descriptors", str(descriptors)) if descriptors is not None else ()
    way = ("--proxy", PROXY_SOCKET, str(proxyvariables.PROXY_PORT)) if proxy else ()
    return (PYTHON, "-I", "-S", _STARTER, *limit, *way, "--", *command)


def with_stderr(command: tuple[str, ...], number: int) -> tuple[str, ...]:
    """A command from `starter` whose starter and command have that descriptor as stderr."""
    at = command.index(_STARTER) + 1
    return (*command[:at], "--stderr", str(number), *command[at:])


def _program(module: str) -> bytes:
    """A program that runs nsm's module, whatever the environment in which it is started.

    The variables are set here, too: some MCP clients give their servers next to none of theirs.
    """
    settings = "\n".join(
        f"os.environ.setdefault({name!r}, {value!r})" for name, value in _VARIABLES
    )
    return f"""\
#!{PYTHON} -IS
import os, sys
sys.path.insert(0, {LIBRARY!r})
{settings}
from {module} import main
sys.exit(main())
""".encode()
