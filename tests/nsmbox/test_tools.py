"""Programs that a box shows: those that the user put on PATH, and none that a box wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from box.shims import CMD_SHIM, program
from nsmbox.host.tools import ProgramFinder
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
