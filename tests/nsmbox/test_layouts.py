"""Claude wherever its installers put it: found on PATH, shown with what it needs, and run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from box.world import HOME, PROJECT, World, open_world

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = pytest.mark.jail

PACKAGE = "node_modules/@anthropic-ai/claude-code"

NATIVE = """\
#!/bin/sh
echo "native $2"
"""

SCRIPT = """\
#!/usr/bin/env node
"""

NODE = """\
#!/bin/sh
# In the place of node: tells which one it is, what it runs, and what that sees beside itself.
echo "$(basename "$(dirname "$(dirname "$(readlink -f "$0")")")") runs ${1##*/} $3"
ls "$(dirname "$(readlink -f "$1")")"
"""


@pytest.fixture
def home() -> Generator[World]:
    """A world whose PATH has no claude by itself."""
    with open_world() as world:
        yield world


def version(world: World, *folders: str) -> list[str]:
    """Lines of `claudebox --version` where PATH has these directories of HOME first."""
    path = ":".join([*(f"{HOME}/{folder}" for folder in folders), "/usr/bin:/bin"])
    nsm = f"{HOME}/.local/bin/claudebox"
    done = world.run(nsm, "--yes", "--version", variables={"PATH": path})
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_nvm_has_node_and_claude_in_one_directory(home: World) -> None:
    root = f"{HOME}/.nvm/versions/node/v20.1.0"
    home.write(f"{root}/bin/node", NODE, 0o755)
    home.write(f"{root}/lib/{PACKAGE}/cli.js", SCRIPT, 0o755)
    home.write(f"{root}/lib/{PACKAGE}/vendor", "")
    home.link(f"{root}/bin/claude", f"../lib/{PACKAGE}/cli.js")
    assert version(home, ".nvm/versions/node/v20.1.0/bin") == [
        "v20.1.0 runs claude --version",
        "cli.js",
        "vendor",
    ]


@pytest.mark.slow
def test_the_native_installer_has_a_file_for_each_version(home: World) -> None:
    home.write(f"{HOME}/.local/share/claude/versions/2.1.0", NATIVE, 0o755)
    home.link(f"{HOME}/.native/claude", f"{HOME}/.local/share/claude/versions/2.1.0")
    assert version(home, ".native") == ["native --version"]


@pytest.mark.slow
def test_a_program_in_a_directory_of_many_is_shown_alone(home: World) -> None:
    for name in ("claude", "other"):
        home.write(f"{HOME}/bin/{name}", f'#!/bin/sh\necho "alone $2"; ls {HOME}/bin\n', 0o755)
    assert version(home, "bin") == ["alone --version", "claude"]


def test_claude_within_the_hosts_own_claude_directory_is_said_to_be_there(home: World) -> None:
    """No box shows the directory in which claude used to install itself."""
    home.write(f"{HOME}/.claude/local/claude", NATIVE, 0o755)
    path = f"{HOME}/.claude/local:/usr/bin:/bin"
    done = home.run(f"{HOME}/.local/bin/claudebox", "--yes", "--version", variables={"PATH": path})
    assert done.returncode == 127, done.stderr
    assert f"only as {HOME}/.claude/local/claude, which no box shows" in done.stderr
    assert "npm install -g @anthropic-ai/claude-code" in done.stderr


PYTHON = """\
#!/bin/sh
echo "$0"
"""


@pytest.mark.parametrize("where", [PROJECT, pytest.param(f"{HOME}/envs", marks=pytest.mark.slow)])
def test_the_python_of_an_active_environment_is_started_in_it(home: World, where: str) -> None:
    """An interpreter knows by its own path which environment it belongs to, as `sys.prefix`
    shows."""
    base = f"{HOME}/.pyenv/versions/3.9.1"
    home.write(f"{base}/bin/python3.9", PYTHON, 0o755)
    home.write(f"{base}/lib/python3.9/os.py", "")
    home.write(f"{where}/a b/pyvenv.cfg", f"home = {base}/bin\n")
    home.write(f"{where}/a b/lib/there", "")
    home.link(f"{where}/a b/bin/python3", f"{base}/bin/python3.9")
    home.link(f"{where}/a b/bin/python", "python3")
    for argv in (["python"], [f"{where}/a b/bin/python"], ["sh", "-c", "python; exit"]):
        done = home.box(*argv, variables={"PATH": f"{where}/a b/bin:{home.variables['PATH']}"})
        assert done.stdout == f"{where}/a b/bin/python\n", done.stderr


@pytest.mark.parametrize("by", ["link", pytest.param("script", marks=pytest.mark.slow)])
def test_the_project_does_not_decide_what_of_home_is_shown(home: World, by: str) -> None:
    """A box may have written it, for the next one to see what lies there."""
    other = f"{HOME}/work/other"
    home.write(f"{other}/bin/tool", "#!/bin/sh\n", 0o755)
    home.write(f"{other}/lib/notes", "of another project\n")
    if by == "link":
        home.link(f"{PROJECT}/.venv/bin/python3", f"{other}/bin/tool")
    else:
        home.write(f"{PROJECT}/.venv/bin/pip", f"#!{other}/bin/tool\n", 0o755)
    path = f"{PROJECT}/.venv/bin:{home.variables['PATH']}"
    done = home.box("sh", "-c", f"python3 -V; ls {HOME}", variables={"PATH": path})
    assert done.stdout.startswith("Python 3")
    assert "work" not in done.stdout.split()
    if by == "link":
        done = home.box(".venv/bin/python3")
        assert (done.returncode, "no box shows" in done.stderr) == (127, True)


@pytest.mark.slow
def test_environments_of_the_project_have_their_python(home: World) -> None:
    """Environments of uv have a link for the minor version, to a directory that no PATH has."""
    root = f"{HOME}/.local/share/uv/python"
    home.write(f"{root}/cpython-3.9.1/bin/python3.9", PYTHON, 0o755)
    home.write(f"{root}/cpython-3.9.1/lib/there", "")
    home.link(f"{root}/cpython-3.9", f"{root}/cpython-3.9.1")
    home.write(f"{PROJECT}/.venv/pyvenv.cfg", f"home = {root}/cpython-3.9/bin\n")
    home.link(f"{PROJECT}/.venv/bin/python", f"{root}/cpython-3.9/bin/python3.9")
    done = home.box(".venv/bin/python")
    assert done.stdout == f"{PROJECT}/.venv/bin/python\n", done.stderr
    done = home.box("sh", "-c", f".venv/bin/python && ls {root}/cpython-3.9/lib")
    assert done.stdout == ".venv/bin/python\nthere\n", done.stderr
