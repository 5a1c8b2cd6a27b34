"""Installations as the README has them, with uv and pipx, by a user who has no clone.

Packages come from the index that this machine is configured for. `make soak` runs these tests.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import bootstrap
from nsm._version import __version__
from realjail import needs_bwrap

pytestmark = [pytest.mark.slow, pytest.mark.jail, needs_bwrap]

ROOT = Path(__file__).resolve().parents[2]
PASSED_ON = re.compile(r"(?i)(PIP_|UV_|SSL_|REQUESTS_|CURL_|.*_PROXY$|LANG$|LC_)")
"""Variables by which installers reach this machine's package index."""

PROGRAMS = ("claudebox", "nsm", "nsm-mcp", "nsm-supervisor")


@dataclass(frozen=True, slots=True)
class User:
    """User with an empty home directory, an installer and Git.

    Attributes:
        installer: `uv` or `pipx`.
        home: the directory of all the user's files.
    """

    installer: str
    home: Path
    variables: dict[str, str] = field(default_factory=dict[str, str])

    def prepare(self) -> None:
        """Make the directories, and put only the installer on PATH."""
        programs, runtime = self.home / "programs", self.home / "run"
        programs.mkdir(parents=True)
        runtime.mkdir(mode=0o700)
        (programs / self.installer).symlink_to(Path(sys.executable).parent / self.installer)
        python = bootstrap.base_python()
        self.variables.update(
            {name: value for name, value in os.environ.items() if PASSED_ON.match(name)}
        )
        self.variables.update(
            HOME=str(self.home),
            PATH=f"{self.home}/.local/bin:{programs}:/usr/local/bin:/usr/bin:/bin",
            XDG_RUNTIME_DIR=str(runtime),
            UV_PYTHON=python,
            PIPX_DEFAULT_PYTHON=python,
            # What was fetched once is kept for the next run, in the clone.
            UV_CACHE_DIR=str(ROOT / ".cache/uv"),
            PIP_CACHE_DIR=str(ROOT / ".cache/pip"),
        )

    def shell(self, command: str) -> str:
        """Run a command that has to succeed, and return its output."""
        done = subprocess.run(
            ["sh", "-ec", command],
            cwd=self.home,
            env=self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def documented(self, verb: str, source: str = "") -> str:
        """Find the pages' command for this installer.

        Args:
            verb: of the installer: `install`, `upgrade` or `uninstall`.
            source: put in the place of the repository's address.
        """
        pages = [(ROOT / name).read_text() for name in ("README.md", "docs/how-to/operations.md")]
        start = {"uv": "uv tool", "pipx": "pipx"}[self.installer]
        what = r"(?:git\+<this repository>|nsm-sessions)"
        (command,) = set(re.findall(f"{start} {verb} {what}", "\n".join(pages)))
        return str(command).replace("git+<this repository>", source)

    def python(self) -> Path:
        """Find the Python of the installed tool."""
        return Path(os.path.realpath(self.home / ".local/bin/nsm")).parent / "python"


@pytest.fixture(scope="module")
def installers() -> None:
    """Make sure that uv and pipx are there, and that packages can be had at all."""
    if not all((Path(sys.executable).parent / name).exists() for name in ("uv", "pipx")):
        pytest.skip("uv and pipx are missing: `sh tools/setup.sh --tools` installs them")
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--retries", "1", "--timeout", "30", "--dest", directory, "hatchling"]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip("not here: no package index can be reached")


@pytest.fixture(params=["uv", "pipx"])
def user(request: pytest.FixtureRequest, installers: None) -> Iterator[User]:
    with tempfile.TemporaryDirectory(prefix="nsm-user-") as directory:
        os.chmod(directory, 0o755)  # jails of root's supervisor belong to another user
        user = User(request.param, Path(directory, "home"))
        user.prepare()
        yield user
        if (user.home / ".local/bin/nsm").exists():
            user.shell("nsm shutdown --yes || true")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*command, "--directory", str(directory)], cwd=ROOT, check=True)
    (path,) = directory.glob("nsm_sessions-*.whl")
    return path


def check_works(user: User) -> None:
    """Check the programs, and what they say of the installation."""
    assert user.shell("nsm run -e python 'print(6 * 7)'") == "42\n"
    for program in PROGRAMS:
        assert user.shell(f"command -v {program}") == f"{user.home}/.local/bin/{program}\n"
    assert user.shell("nsm-mcp --version; nsm-supervisor --version").count(__version__) == 2
    user.shell("nsm setup cursor --yes")
    entry = json.loads((user.home / ".cursor/mcp.json").read_text())["mcpServers"]["nsm"]
    assert entry == {"command": f"{user.home}/.local/bin/nsm-mcp"}
    report = json.loads(user.shell("nsm doctor --json"))
    rows = [check for check in report["checks"] if check["name"] == "client Cursor"]
    assert {row["status"] for row in rows} == {"ok"}, rows
    # What `nsm service install` writes into its units stays right after an upgrade.
    code = "import sys; from nsm.cli.verbs.service import commands; sys.argv[0] = 'nsm'"
    places = [[f"{user.home}/.local/bin/{name}"] for name in ("nsm-supervisor", "nsm")]
    assert user.shell(f'{user.python()} -c "{code}; print(commands())"') == f"{tuple(places)}\n"


def check_uninstalls(user: User) -> None:
    """Check that no program is left."""
    user.shell(f"nsm shutdown --yes; {user.documented('uninstall')}")
    assert not [name for name in PROGRAMS if (user.home / ".local/bin" / name).is_symlink()]


def test_a_wheel_is_installed_and_removed(user: User, wheel: Path) -> None:
    user.shell(user.documented("install", str(wheel)))
    check_works(user)
    check_uninstalls(user)


def test_the_repository_is_installed_upgraded_with_its_sessions_and_removed(user: User) -> None:
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not here: no clone, or no git")
    repository = user.home / "repository"
    user.shell(f"git -c safe.directory='*' clone -q 'file://{ROOT}' '{repository}'")
    user.shell(user.documented("install", f"git+file://{repository}"))
    check_works(user)
    user.shell("nsm run -e python -s work 'number = 42'")
    version = repository / "clients/nsm/_version.py"
    version.write_text(re.sub('"[0-9.]+"', '"99.1.2"', version.read_text(), count=1))
    identity = "-c user.name=Ada -c user.email=ada@example.org"
    user.shell(f"git -C '{repository}' {identity} commit -qam 'version: 99.1.2'")
    user.shell(f"{user.documented('upgrade')}; nsm reload")
    assert user.shell("nsm --version").startswith("nsm 99.1.2+")
    assert "99.1.2" in user.shell("nsm status --json")
    assert user.shell("nsm run -e python -s work number") == "42\n"
    check_uninstalls(user)


def test_a_program_of_ones_own_imports_nsm(installers: None, wheel: Path, tmp_path: Path) -> None:
    assert installers is None
    user = User("uv", tmp_path / "home")
    user.prepare()
    user.shell(f"uv venv -q own && uv pip install -q --python own/bin/python '{wheel}'")
    code = "import nsm; print(nsm.Client().run('print(6 * 7)', env='python').stdout, end='')"
    try:
        assert user.shell(f'own/bin/python -c "{code}"') == "42\n"
    finally:
        user.shell("own/bin/nsm shutdown --yes")
