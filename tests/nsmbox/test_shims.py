"""Programs behind wrappers that only find another program."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from box.shims import CMD_SHIM, program
from nsmbox.host.shims import behind


def note(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_program_is_no_shim(tmp_path: Path) -> None:
    assert behind(program(tmp_path / "bin/claude"), {}, "/") is None
    assert behind(program(tmp_path / "shims/claude"), {}, "/") is None
    assert behind("/usr/bin/env", {}, "/") is None
    assert behind(str(tmp_path / "absent"), {}, "/") is None


PYENVS: list[tuple[dict[str, str], str, str, str]] = [
    ({}, "3.11.1\n", "3.12.2\n", "3.11.1"),
    ({}, "", "3.12.2\n", "3.12.2"),
    ({"PYENV_VERSION": "3.12.2"}, "3.11.1\n", "", "3.12.2"),
    ({"PYENV_VERSION": "3.9.9:3.12.2"}, "", "", "3.12.2"),
    ({}, "# a note\n3.9.9\n3.12.2\n", "", "3.12.2"),
    ({}, "../../other\n", "", ""),
    ({"PYENV_VERSION": "../../other"}, "3.11.1\n", "", ""),
    ({}, "", "system\n", ""),
]


@pytest.mark.parametrize(("variables", "local", "user", "version"), PYENVS)
def test_pyenv_takes_the_directorys_version_then_the_users(
    variables: dict[str, str], local: str, user: str, version: str, tmp_path: Path
) -> None:
    root = tmp_path / ".pyenv"
    places = {v: program(root / f"versions/{v}/bin/python") for v in ("3.11.1", "3.12.2")}
    program(tmp_path / "other/bin/python")
    note(root / "version", user)
    note(tmp_path / "project/.python-version", local)
    (tmp_path / "project/below").mkdir()
    shim = program(root / "shims/python")
    assert behind(shim, variables, str(tmp_path / "project/below")) == places.get(version, "")


def test_a_pipe_as_a_version_file_is_not_waited_for(tmp_path: Path) -> None:
    root = tmp_path / ".nodenv"
    node = program(root / "versions/20.1.0/bin/node")
    note(root / "version", "20.1.0")
    os.mkfifo(tmp_path / ".node-version")
    assert behind(program(root / "shims/node"), {}, str(tmp_path)) == node


def test_asdf_and_mise_have_the_newest(tmp_path: Path) -> None:
    for version in ("9.8.0", "20.1.0", "20.11.0"):
        newest = program(tmp_path / f"installs/node/{version}/bin/node")
    claude = program(tmp_path / "installs/npm-claude/2.1.0/bin/claude")
    program(tmp_path / "shims/node")
    for name, found in {"node": newest, "claude": claude, "ruby": ""}.items():
        assert behind(str(tmp_path / "shims" / name), {}, "/") == found


def test_volta_has_packages_and_versions_of_node(tmp_path: Path) -> None:
    root = tmp_path / ".volta"
    shim = program(root / "bin/volta-shim", "ELF")
    for name in ("node", "claude", "other", "broken"):
        (root / "bin" / name).symlink_to("volta-shim")
    node = program(root / "tools/image/node/20.1.0/bin/node")
    package = "@anthropic-ai/claude-code"
    claude = program(root / f"tools/image/packages/{package}/bin/claude")
    note(root / "tools/user/platform.json", json.dumps({"node": {"runtime": "20.1.0"}}))
    note(root / "tools/user/bins/claude.json", json.dumps({"package": package}))
    note(root / "tools/user/bins/other.json", json.dumps({"package": "../../../.."}))
    note(root / "tools/user/bins/broken.json", "[" * 100_000)
    found = {name: behind(str(root / "bin" / name), {}, "/") for name in os.listdir(root / "bin")}
    assert found == {"volta-shim": "", "node": node, "claude": claude, "other": "", "broken": ""}
    assert shim


def test_wrappers_of_pnpm_lead_to_the_package(tmp_path: Path) -> None:
    place = "global/5/node_modules/@anthropic-ai/claude-code/cli.js"
    wrapper = program(tmp_path / "claude", CMD_SHIM.replace("PLACE", place))
    assert behind(wrapper, {}, "/") is None, "nothing is there yet"
    package = program(tmp_path / place)
    assert behind(wrapper, {}, "/") == package


def test_wrappers_lead_to_packages_only(tmp_path: Path) -> None:
    program(tmp_path / "secret/tool")
    wrapper = program(tmp_path / "bin/claude", CMD_SHIM.replace("PLACE", "../secret/tool"))
    assert behind(wrapper, {}, "/") is None
