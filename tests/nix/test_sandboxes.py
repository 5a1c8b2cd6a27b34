"""Artifacts, built for real and run by hand: what is in their jails, and what is not.

All is asked for in one execution of Python each, since it can look at everything.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

import standin
from nix.jails import check_jail, closure, look

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

pytestmark = pytest.mark.jail

NOBODY = 65534

CODE = [
    pytest.param("presets.bash", "printf '%s' $((6*7))", marks=pytest.mark.slow),
    ("presets.python", "import yaml; print(yaml.safe_load('42'), end='')"),
    pytest.param(
        "presets.node",
        "process.stdout.write(String(6 * 7))",
        marks=[pytest.mark.node, pytest.mark.slow],
    ),
    pytest.param("test-sandbox", "print(6 * 7, end='')", marks=pytest.mark.slow),
]


def run(
    artifact: Path,
    code: str,
    variables: Mapping[str, str] | None = None,
    *,
    user: int | None = None,
) -> subprocess.CompletedProcess[str]:
    """One execution by `bin/run`, with nothing of the caller's environment but `variables`."""
    return subprocess.run(
        [str(artifact / "bin/run")],
        input=code,
        env=variables or {},
        user=user,
        group=user,
        extra_groups=None if user is None else [],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture(params=["own", pytest.param("another", marks=pytest.mark.root)])
def user(request: pytest.FixtureRequest) -> int | None:
    """User who starts the wrapper: this one and, if it is root, also an ordinary one."""
    return None if request.param == "own" else NOBODY


@pytest.mark.parametrize(("environment", "code"), CODE)
def test_runs_code(
    built: Callable[[str], Path], environment: str, code: str, user: int | None
) -> None:
    for given, printed in ((code, "42"), ("", "")):
        done = run(built(environment), given, user=user)
        assert (done.stdout, done.stderr, done.returncode) == (printed, "", 0)


def test_metadata_says_what_was_asked_for(built: Callable[[str], Path]) -> None:
    artifact = built("presets.python")
    told = json.loads((artifact / "metadata.json").read_text())
    assert told["schema"] == 1
    assert told["name"] == "python"
    assert told["interpreter_type"] == "python"
    done = run(artifact, "import sys; print(sys.executable, end='')")
    assert done.stdout == told["program"]


@pytest.fixture
def project() -> Generator[Path]:
    """Not in pytest's directories, which other users may not go to."""
    with tempfile.TemporaryDirectory(prefix="nsm-project-") as path:
        Path(path).chmod(0o755)
        Path(path, "numbers.txt").write_text("1\n2\n39\n")
        yield Path(path)


@pytest.fixture
def seen(
    built: Callable[[str], Path], place: standin.Place, project: Path, user: int | None
) -> dict[str, Any]:
    """View of code in the jail of an artifact."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        code = look(place, port)
        secret = {"SECRET": "x", "PROJECT_DIR": str(project), "LD_PRELOAD": "/nowhere"}
        done = run(built("test-sandbox"), code, secret, user=user)
    assert done.returncode == 0, done.stderr
    assert not (project / "new").exists()
    return cast("dict[str, Any]", json.loads(done.stdout))


@pytest.mark.slow
def test_the_jail(seen: dict[str, Any], place: standin.Place, built: Callable[[str], Path]) -> None:
    needed = closure(place, built("test-sandbox"))
    check_jail(seen, place, needed)
    assert seen["processes"] <= 3


def test_nothing_is_kept_between_executions(built: Callable[[str], Path]) -> None:
    artifact = built("presets.bash")
    assert run(artifact, "echo kept >/workspace/file; echo kept >/tmp/file").returncode == 0
    assert run(artifact, "ls -A /workspace /tmp").stdout == "/tmp:\n\n/workspace:\n"


@pytest.mark.slow
def test_the_presets_tools_are_there(built: Callable[[str], Path]) -> None:
    tools = "bash cat sed grep awk find xargs jq tree diff file bc"
    done = run(built("presets.bash"), f"type -t {tools} >/dev/null && echo all")
    assert (done.stdout, done.stderr) == ("all\n", "")
    done = run(built("presets.bash"), "file --brief --mime-type /etc/passwd; echo '6*7' | bc")
    assert done.stdout == "text/plain\n42\n"


@pytest.mark.parametrize("program", ["run", "session-run", "template-run"])
def test_the_stand_in_for_jail_nix_makes_the_same_command(
    place: standin.Place, program: str
) -> None:
    """The options of bwrap are the same, in the same order, variables apart."""
    if (tree := os.environ.get(standin.JAIL_NIX_VARIABLE)) is None:
        pytest.skip(f"not here: {standin.JAIL_NIX_VARIABLE} names no tree of jail.nix")

    def command(jail: Path) -> tuple[str, list[str]]:
        artifact = standin.build(place, "test-sandbox", None, jail=jail)
        (line,) = re.findall(
            "^exec .*/bwrap .*$", (artifact / "bin" / program).read_text(), re.MULTILINE
        )
        line = re.sub(r"/[0-9a-z]{32}-", "/", line)
        line = re.sub(r'--args "\$\w+"', "--args CLOSURE", line)
        return re.sub(r"--setenv \S+ \S+ ", "", line), sorted(re.findall(r"--setenv \S+ \S+", line))

    assert command(place.stand_in_jail) == command(Path(tree))
