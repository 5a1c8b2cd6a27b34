"""Programs that a box has: the system's by links, others', and what is behind shims."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from box.shims import CMD_SHIM, program
from nsmbox.host import program_links
from nsmbox.host.tools import ProgramFinder, behind
from nsmbox.model.plan import BoxError
from nsmbox.protection.secrets import Known


class Home:
    """A home directory with a project, in which a box was, and another one."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.project, self.other = home / "work/shop", home / "work/other"
        self.project.mkdir(parents=True)

    def environment(self, root: Path) -> Path:
        """A virtual environment of the system's Python, with packages of its owner's."""
        (root / "lib").mkdir(parents=True)
        (root / "bin").mkdir()
        (root / "pyvenv.cfg").write_text("home = /usr/bin\n")
        (root / "bin/python").symlink_to("/bin/sh")
        return root

    def shown(self, *folders: Path, name: str = "python") -> set[str]:
        """Directories of HOME that a box is shown, for a PATH of these directories."""
        programs = ProgramFinder(
            variables={"PATH": ":".join(map(str, folders))},
            home=str(self.home),
            directory=str(self.project),
            writable=(str(self.project),),
            roots=("/usr", "/bin", str(self.project)),
            standard=("/usr/bin", "/bin"),
            known=Known(),
        )
        found = [*programs.environments()]
        if tool := programs.find(name):
            found += [tool, *programs.needs(tool)]
        return {str(Path(path).relative_to(self.home)) for tool in found for path in tool.shown}


@pytest.fixture
def at(tmp_path: Path) -> Home:
    return Home(tmp_path.resolve())


def test_an_environment_that_the_user_has_active_is_shown(at: Home) -> None:
    other = at.environment(at.other / "env")
    assert at.shown(other / "bin") == {"work/other/env"}


def test_links_to_the_users_are_the_users(at: Home) -> None:
    (at.home / "active").symlink_to(at.environment(at.other / "env"))
    assert at.shown(at.home / "active/bin") == {"work/other/env"}


@pytest.mark.parametrize("link", [".venv", ".venv/bin"])
def test_an_environment_is_not_that_which_a_box_has_linked(at: Home, link: str) -> None:
    other = at.environment(at.other / "env")
    (at.project / link).parent.mkdir(exist_ok=True)
    (at.project / link).symlink_to(other / "bin" if link.endswith("bin") else other)
    assert at.shown() == set()
    assert at.shown(at.project / ".venv/bin") == set()


def test_a_directory_of_path_is_not_that_which_a_box_has_linked(at: Home) -> None:
    program(at.other / "node_modules/.bin/node")
    (at.project / "node_modules").symlink_to(at.other / "node_modules")
    assert at.shown(at.project / "node_modules/.bin", name="node") == set()


def test_a_link_of_the_users_that_goes_by_the_project_leads_where_a_box_says(at: Home) -> None:
    program(at.other / "node_modules/tool/node")
    (at.home / "bin").mkdir()
    (at.home / "bin/node").symlink_to("../work/shop/../shop/tools/node")
    (at.project / "tools").symlink_to(at.other / "node_modules/tool")
    assert at.shown(at.home / "bin", name="node") == set()


def test_a_wrapper_that_a_box_has_left_leads_nowhere(at: Home) -> None:
    program(at.other / "node_modules/tool/cli.js")
    wrapper = CMD_SHIM.replace("PLACE", "../../../other/node_modules/tool/cli.js")
    program(at.project / "node_modules/.bin/node", wrapper)
    assert at.shown(at.project / "node_modules/.bin", name="node") == set()


def test_a_script_that_a_box_has_left_has_no_environment_of_others(at: Home) -> None:
    other = at.environment(at.other / "env")
    program(at.project / "bin/tool", f"#!{other}/bin/python\n")
    assert at.shown(at.project / "bin", name="tool") == set()


def test_links_in_a_circle_are_no_programs(at: Home) -> None:
    (at.project / "bin").symlink_to("bin")
    assert at.shown(at.project / "bin") == set()


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


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two directories of programs, and a cache of our own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first, second = tmp_path / "local", tmp_path / "bin"
    for directory in (first, second):
        directory.mkdir()
    (first / "git").touch()
    for name in ("git", "bash", "ssh", "ssh-add", "gpgv", "sudo", "age", "agetty", "sum"):
        (second / name).touch()
    (second / "slogin").symlink_to("ssh")
    (second / "remote").symlink_to("ssh")
    (second / "editor").symlink_to("/nowhere/editor")
    return str(first), str(second)


def made(places: tuple[str, ...]) -> dict[str, str]:
    these = program_links.look(places)
    program_links.make(these)
    return {name: os.readlink(os.path.join(these.path, name)) for name in os.listdir(these.path)}


def test_each_program_but_those_that_no_box_runs(places: tuple[str, str]) -> None:
    first, second = places
    assert made(places) == {
        "git": f"{first}/git",
        **{name: f"{second}/{name}" for name in ("bash", "agetty", "sum", "editor")},
    }


def test_links_are_kept_until_a_directory_changes(places: tuple[str, str]) -> None:
    these = program_links.look(places)
    program_links.make(these)
    mark = os.stat(these.path).st_ino
    program_links.make(program_links.look(places))
    assert os.stat(these.path).st_ino == mark
    assert program_links.look(places[::-1]).path != these.path
    with open(f"{places[1]}/new", "w", encoding="utf-8"):
        pass
    assert "new" in made(places)
    assert program_links.look(places).path != these.path


def test_those_of_long_ago_are_removed_when_others_are_made(places: tuple[str, str]) -> None:
    old, used = program_links.look(places), program_links.look(places[:1])
    program_links.make(old)
    program_links.make(used)
    parent = os.path.dirname(old.path)
    killed = os.path.join(parent, ".begun-1-2")
    os.mkdir(killed)
    long_ago = time.time() - program_links.UNUSED_S - 60
    for path in (old.path, used.path, killed):
        os.utime(path, (long_ago, long_ago))
    program_links.make(used)  # by which it is not unused any more
    new = program_links.look(places[1:])
    program_links.make(new)
    assert sorted(os.listdir(parent)) == sorted(map(os.path.basename, (used.path, new.path)))


def test_many_at_once_make_one(places: tuple[str, str]) -> None:
    these = program_links.look(places)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(program_links.make, [these] * 16))
    assert os.listdir(os.path.dirname(these.path)) == [os.path.basename(these.path)]
    assert os.readlink(f"{these.path}/bash") == f"{places[1]}/bash"


def test_a_directory_that_another_box_has_renamed_is_passed_over(
    places: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    listdir = os.listdir

    def listed(path: str) -> list[str]:
        return [*listdir(path), ".begun-by-another"]

    monkeypatch.setattr(os, "listdir", listed)
    program_links.make(program_links.look(places))


def test_a_cache_that_cannot_be_written(places: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    these = replace(program_links.look(places), path=str(tmp_path / "file" / "box-tools" / "x"))
    with pytest.raises(BoxError, match="cannot be kept") as caught:
        program_links.make(these)
    assert "XDG_CACHE_HOME" in caught.value.hint
    assert "NSM_SOCKET" not in caught.value.message


def test_nothing_is_left_of_what_could_not_be_made(
    places: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    these = program_links.look(places)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "symlink", full)
    with pytest.raises(BoxError, match="No space left"):
        program_links.make(these)
    assert os.listdir(os.path.dirname(these.path)) == []


def test_a_directory_that_is_gone() -> None:
    with pytest.raises(BoxError, match="cannot be looked at"):
        program_links.look(("/nowhere",))
