"""A project's own shell, evaluated by the real Nix, in real jails, beside what `nix develop` gives.

The flake has no inputs and is built by the host's Bash: what is compared is what Nix makes of a
derivation, whatever nixpkgs would put into it.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import nsm
import standin
from e2e_support import supervisor
from nsmd.jail.host import BASE_PATH
from nsmd.model.policy import limit_variables

if TYPE_CHECKING:
    from collections.abc import Generator

    from e2e_support import Supervisor

pytestmark = [pytest.mark.jail, pytest.mark.slow]

SYSTEM = f"{platform.machine()}-linux"

FLAKE = r"""
{
  outputs = { self }:
    let
      system = "@system@";
      bash = "@bash@";
      build = name: script: derivation {
        inherit name system;
        builder = bash;
        PATH = "/usr/bin:/bin";
        args = [ "-euc" (script + "\n:\n") ];
      };
      tool = build "tool-1.0" ''
        mkdir -p $out/bin
        printf '#!@bash@\necho tool 1.0\n' >$out/bin/tool
        chmod +x $out/bin/tool
      '';
      stdenv = build "stdenv" ''
        mkdir -p $out
        cat >$out/setup <<'END'
        export PATH=/usr/bin:/bin XDG_DATA_DIRS=/from/setup
        for each in $buildInputs; do PATH=$each/bin:$PATH; done
        export FROM_SETUP="set by setup"
        plain='not exported, "quoted"'
        declare -a list=(one "two words" $'three\nlines')
        declare -A table=([key]=value ["a key"]="a value")
        runHook() { local hook="''${!1-}"; eval "$hook"; }
        buildPhase() {
            cat <<HERE
        built by $1
        HERE
        }
        END
      '';
    in {
      devShells.${system}.default = derivation {
        name = "project-shell";
        inherit system stdenv;
        builder = bash;
        outputs = [ "out" "dev" ];
        buildInputs = [ tool ];
        GREETING = "@greeting@";
        shellHook = ''
          export HOOKED="$GREETING in $PWD"
          hooked() { echo "hooked $1"; }
          alias hi='echo hi'
          set -o pipefail
          [ "$PWD" = /project ] || touch ran-on-the-host
          echo "welcome to the shell"
        '';
      };
    };
}
"""

CONFIG = """
[project]
use_flake = true
[project.inherit_env]
vars = ["TOKEN", "UNSET"]
"""

COLD = "[defaults]\ntemplates = false\n"

ONLY_DEVELOP = {"NIX_CONFIG", "NIX_REMOTE", "XDG_CACHE_HOME", "NIX_CONF_DIR", "NIX_USER_CONF_FILES"}
"""Variables that Nix itself got here, and passes on to what it starts."""


class World:
    """A project, and a store that is reachable in jails; nix is given both.

    Args:
        root: of the store.
        project: outside of any clone, of whose files nix would take the tracked ones only.
    """

    def __init__(self, root: Path, project: Path) -> None:
        self.place = standin.Place(root)
        self.project = project
        self.write("hello from the flake")
        settings = self.place.environment
        # What builds it is the host's own Bash.
        plain = settings["NIX_CONFIG"].replace("sandbox = true", "sandbox = false")
        self.nix = {n: v for n, v in settings.items() if n.startswith("NIX_")}
        self.nix |= {"NIX_CONFIG": plain, "XDG_CACHE_HOME": settings["XDG_CACHE_HOME"]}

    def write(self, greeting: str) -> None:
        bash = shutil.which("bash", path="/usr/bin:/bin") or "/bin/bash"
        text = FLAKE.replace("@system@", SYSTEM).replace("@bash@", bash)
        (self.project / "flake.nix").write_text(text.replace("@greeting@", greeting))

    def develop(self, *command: str) -> str:
        """Run a command in `nix develop` and return its output."""
        nix = shutil.which("nix")
        assert nix is not None
        told = subprocess.run(
            [nix, "develop", "--no-write-lock-file", "-c", *command],
            cwd=self.project,
            env={**self.nix, "PATH": "/usr/bin:/bin", "HOME": str(self.place.root), "TOKEN": "t"},
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        (self.project / "ran-on-the-host").unlink()  # which this is
        return told


@pytest.fixture(scope="module")
def world() -> Generator[World]:
    base = standin.default_place().root.parent
    base.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="nsm-shell-", dir=base))
    with tempfile.TemporaryDirectory(prefix="nsm a project ") as project:
        for directory in (root, Path(project)):
            directory.chmod(0o755)
        world = World(root, Path(project))
        try:
            yield world
        finally:
            standin.remove(world.place)


@pytest.fixture(scope="module", params=["forks", "jails of their own"])
def running(request: pytest.FixtureRequest, world: World) -> Generator[Supervisor]:
    config = CONFIG if request.param == "forks" else CONFIG + COLD
    with (
        tempfile.TemporaryDirectory(prefix="nsm-") as directory,
        supervisor(Path(directory), config=config, variables=world.nix) as it,
    ):
        yield it


def run(it: Supervisor, world: World, code: str, **more: Any) -> nsm.RunResult:
    with it.client() as client:
        return client.run(code, env="project", project=world.project, **more)


def variables(text: str) -> dict[str, str]:
    """Parse the output of `env -0`."""
    return dict(row.split("=", 1) for row in text.split("\0") if "=" in row)


def test_a_session_has_the_variables_of_nix_develop(
    running: Supervisor, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "t")
    expected = world.develop("env", "-0").removeprefix("welcome to the shell\n")
    develop = variables(expected)
    result = run(running, world, "env -0")
    assert (result.stderr, result.exit_code) == ("", 0)
    jail = variables(result.stdout)
    for name in ONLY_DEVELOP | {n for n in world.nix if n.startswith("NIX_")}:
        develop.pop(name, None)
        jail.pop(name, None)
    assert jail.pop("PATH") == develop.pop("PATH").removesuffix("/usr/bin:/bin") + (
        ":".join(BASE_PATH)
    )
    for told in (jail, develop):
        top = told["NIX_BUILD_TOP"]
        assert top.startswith("/tmp/nix-shell.")
        told |= {name: "top" for name, value in told.items() if value == top}
    assert (jail.pop("HOME"), jail.pop("PWD")) == ("/workspace", "/workspace")
    assert Path(jail.pop("SHELL")).name == "bash"
    # The jail's own, and what depends on where it is called.
    for name in ("HOME", "PWD", "SHELL"):
        develop.pop(name, None)
    for name in ("LANG", "LOGNAME", "USER", "TERM", "OLDPWD", "SHLVL", "_"):
        develop.pop(name, None)
        jail.pop(name, None)
    for name in ("PIP_RETRIES", "npm_config_fetch_retries"):  # its network is off
        jail.pop(name)
    for name in limit_variables(1024):
        jail.pop(name)
    there = str(world.project)
    assert jail == {
        name: value.replace(f"{there}/outputs", "/workspace/outputs").replace(there, "/project")
        for name, value in develop.items()
    }
    assert jail["HOOKED"] == "hello from the flake in /project"


def test_a_session_has_functions_aliases_and_options_of_the_shell(
    running: Supervisor, world: World
) -> None:
    code = """
        tool; hi there; hooked x; buildPhase someone; runHook GREETING 2>/dev/null
        echo "$plain|${list[2]}|${table[a key]}|$([[ -o pipefail ]]; echo $?)"
    """
    result = run(running, world, code)
    assert result.stdout == (
        "tool 1.0\nhi there\nhooked x\nbuilt by someone\n"
        'not exported, "quoted"|three\nlines|a value|0\n'
    )


def test_the_jail_shows_its_closure_and_nothing_ran_on_the_host(
    running: Supervisor, world: World
) -> None:
    result = run(running, world, 'ls "$(dirname "$stdenv")"')
    names = {name.partition("-")[2] for name in result.stdout.split()}
    assert names == {*("tool-1.0", "stdenv", "project-shell-env", "project-shell-env-dev")}
    assert len(list(world.place.store.iterdir())) > len(names)
    result = run(running, world, "touch $stdenv/x; touch /project/x; ls /project")
    assert result.stdout == "flake.nix\n"
    assert result.stderr.count("Read-only file system") == 2
    assert os.listdir(world.project) == ["flake.nix"], "no lock, and no trace of the hook"


def test_the_set_up_comes_again_after_a_restart(running: Supervisor, world: World) -> None:
    ended = run(running, world, "exit 3", session="again")
    assert (ended.exit_code, ended.interpreter_restarted) == (3, True)
    result = run(running, world, "tool; hooked again", session="again")
    assert (result.stdout, result.stderr) == ("tool 1.0\nhooked again\n", "")


def test_a_change_of_the_flake(running: Supervisor, world: World) -> None:
    assert run(running, world, "echo $GREETING", session="older").stdout == "hello from the flake\n"
    world.write("hello again")
    try:
        assert run(running, world, "echo $HOOKED").stdout == "hello again in /project\n"
        again = run(running, world, "echo $GREETING; tool", session="older")
        assert again.stdout == "hello from the flake\ntool 1.0\n"
        (world.project / "flake.nix").write_text("{ outputs = { self }: { x = y; }; }")
        with pytest.raises(nsm.NsmError, match="undefined variable 'y'") as error:
            run(running, world, "true")
        assert error.value.code == "environment-unavailable"
        rows = running.run("nsm", "env").stdout
        assert "undefined variable 'y'" in rows
        (world.project / "flake.nix").write_text("{ outputs = { self }: { }; }")
        with pytest.raises(nsm.NsmError, match=rf"neither devShells\.{SYSTEM}\.default nor"):
            run(running, world, "true")
        with running.client() as client:
            result = client.run("echo fine", env="bash", project=world.project)
            assert result.stdout == "fine\n"
    finally:
        world.write("hello from the flake")
    assert run(running, world, "echo $GREETING").stdout == "hello from the flake\n"


def test_git_runs_nothing_that_the_repository_names(
    running: Supervisor, world: World, tmp_path: Path
) -> None:
    """Nix starts git, and code in a session may have written the repository's configuration."""
    proof = tmp_path / "proof"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch '{proof}'\nexec cat\n")
    program.chmod(0o755)
    settings = {"core.fsmonitor": program, "filter.x.clean": program, "diff.external": program}

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(world.project), *words], check=True, capture_output=True)

    git("init", "--quiet")
    try:
        git("add", "flake.nix")
        git("-c", "user.name=me", "-c", "user.email=me@here", "commit", "--quiet", "-m", "x")
        (world.project / ".git" / "info" / "attributes").write_text("* filter=x\n")
        for name, value in settings.items():
            git("config", name, str(value))
        world.write("hello from a repository")
        command = ["git", "-C", str(world.project), "diff", "HEAD", "--quiet"]  # as Nix does
        subprocess.run(command, check=False)
        assert proof.exists(), "this git would run it"
        proof.unlink()
        assert run(running, world, "echo $GREETING; tool").stdout == (
            "hello from a repository\ntool 1.0\n"
        )
        assert not proof.exists()
        assert not list(running.directory.rglob("devshells/*/tree"))
    finally:
        shutil.rmtree(world.project / ".git")
        world.write("hello from the flake")
