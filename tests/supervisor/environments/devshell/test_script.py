"""Output of `nix print-dev-env --json` as Bash code, run by Bash.

The samples are the output of Nix 2.8 and 2.26 for one flake, and of 2.26 for a derivation with
structured attributes, of which 2.8 makes no shell.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from nsmd.environments.devshell import script
from nsmd.environments.devshell.script import DevEnvError, parse, setup_steps
from nsmd.model.values import SetupStep

SAMPLES = Path(__file__).parent / "samples"
SHOW = r"""
printf '%s\0' "$PWD" "$SHELL" "$PATH" "${out-}" "${dev-}" "${plain-}" "${list[2]-}" \
    "${table[a key]-}" "$NIX_BUILD_TOP" "$TMPDIR" "${HOOKED-}" "${shellHook-}" "$HOME"
shopt expand_aliases
sh -c 'echo "${FROM_SETUP-} ${plain-no}"'
declare -F
"""


def sample(name: str) -> bytes:
    return (SAMPLES / name).read_bytes()


def steps_of(data: bytes, project: Path, workspace: Path) -> tuple[SetupStep, ...]:
    return setup_steps(
        parse(data), project=str(project), workspace=str(workspace), program="/b/bash", root="/n/r"
    )


def run(steps: tuple[SetupStep, ...], show: str, workspace: Path) -> str:
    """Run steps in a shell and return what it then shows."""
    code = "\n".join([*(step.code for step in steps), show])
    done = subprocess.run(
        ["/bin/bash", "--norc", "--noprofile"],
        input=code,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=workspace,
        env={"PATH": "/usr/bin:/bin", "HOME": "/home/me", "TMPDIR": str(workspace)},
    )
    assert done.stderr == "", done.stderr
    return done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "it's a project"
    folder.mkdir()
    return folder


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("version", ["2.8", "2.26"])
def test_a_shell_has_what_the_flake_says(version: str, project: Path, workspace: Path) -> None:
    data = sample(f"nix-{version}.json")
    told = run(steps_of(data, project, workspace), SHOW, workspace)
    *values, rest = told.split("\0")
    welcome, values[0] = values[0].split("\n", 1)
    assert welcome == "welcome to the shell"
    top = values[8]
    Path(top).rmdir()  # in a jail it goes with the session
    assert top.startswith("/tmp/nix-shell.")
    tool = json.loads(data)["variables"]["buildInputs"]["value"] + "/bin"
    assert values == [
        str(workspace),
        "/b/bash",
        f"{tool}:/usr/bin:/bin:/usr/bin:/bin",
        f"{workspace}/outputs/out",
        f"{workspace}/outputs/dev",
        "not exported, \"quoted\" and 'quoted'",
        "three\nlines",
        "a value",
        top,
        top,
        f"hello from the flake in {project}",
        json.loads(data)["variables"]["shellHook"]["value"],
        "/home/me",
    ]
    assert rest.split() == [
        *("expand_aliases", "on", "set", "by", "setup", "no"),
        *("declare", "-f", "buildPhase", "declare", "-f", "hooked", "declare", "-f", "runHook"),
    ]


def test_structured_attributes_are_files_of_the_session(
    project: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "ATTRIBUTES_DIRECTORY", str(workspace / "attributes"))
    data = sample("structured-2.26.json")
    show = (
        'rmdir "$NIX_BUILD_TOP"; echo $NIX_ATTRS_SH_FILE; . "$NIX_ATTRS_SH_FILE"; '
        'echo "${outputs[out]} ${settings[key]} ${list[1]} $HOOKED"; cat "$NIX_ATTRS_JSON_FILE"'
    )
    told = run(steps_of(data, project, workspace), show, workspace).splitlines()
    assert told[0] == f"{workspace}/attributes/.attrs.sh"
    assert told[1] == f"{workspace}/outputs/out a value two words not exported"
    attributes = json.loads("".join(told[2:]))
    assert attributes["outputs"] == {n: f"{workspace}/outputs/{n}" for n in ("out", "dev")}
    assert (attributes["settings"], attributes["list"]) == (
        {"key": "a value"},
        ["one", "two words"],
    )


def test_a_hook_decides_where_the_session_begins(project: Path, workspace: Path) -> None:
    (project / "src").mkdir()
    for hook, place in (("cd src", project / "src"), ("", workspace), ("cd /", Path("/"))):
        data = env(shellHook={"type": "var", "value": hook})
        told = run(steps_of(data, project, workspace), 'rmdir "$NIX_BUILD_TOP"; pwd', workspace)
        assert told == f"{place}\n"


def test_every_text_comes_through(project: Path, workspace: Path) -> None:
    texts = ["", "'", "$(echo no)", "`echo no`", "a\nb\n", '"\\"', "*", "ü € 𝄞", "-n", "!x", "\x01"]
    data = env(
        **{f"v{number}": {"type": "var", "value": text} for number, text in enumerate(texts)},
        all={"type": "array", "value": texts},
        map={"type": "associative", "value": {text or "empty": text for text in texts}},
    )
    values = " ".join(f'"$v{number}"' for number in range(len(texts)))
    show = (
        f'rmdir "$NIX_BUILD_TOP"; key="\'"; printf "%s\\0" {values} "${{all[@]}}" "${{map[$key]}}"'
    )
    told = run(steps_of(data, project, workspace), show, workspace)
    assert told.split("\0") == [*texts, *texts, "'", ""]


def env(**variables: Any) -> bytes:
    """Make the output of nix for such variables."""
    outputs = {"type": "exported", "value": "out"}
    out = {"type": "exported", "value": "/nix/store/x-env"}
    all_of_them = {"outputs": outputs, "out": out, **variables}
    return json.dumps({"variables": all_of_them, "bashFunctions": {}}).encode()


def test_names_that_would_be_code_are_left_out() -> None:
    data = json.loads(env(**{"a; rm": {"type": "var", "value": "1"}}))
    data["bashFunctions"] = {"f; rm": " x", "g$(h)": " x", "name-with.dots::and": " x"}
    told = parse(json.dumps(data).encode())
    assert set(told.variables) == {"outputs", "out"}
    assert set(told.bashFunctions) == {"name-with.dots::and"}


BAD = [
    b"",
    b"\xff",
    b"[]",
    b"{}",
    b'{"variables": []}',
    b'{"variables": {}, "bashFunctions": {"f": 1}}',
    b'{"variables": {"x": 1}, "bashFunctions": {}}',
    b'{"variables": {"x": {"type": "var"}}, "bashFunctions": {}}',
    b'{"variables": {"x": {"type": "array", "value": [1]}}, "bashFunctions": {}}',
    b'{"variables": {"x": {"type": "associative", "value": []}}, "bashFunctions": {}}',
    b'{"variables": {}, "bashFunctions": {}, "structuredAttrs": []}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("data", BAD, ids=range(len(BAD)))
def test_something_else_is_refused(data: bytes) -> None:
    with pytest.raises(DevEnvError):
        parse(data)
