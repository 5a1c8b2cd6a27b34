"""Files of requirements, and locks, that are none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nsmd.model.packages import WantedPackages
from nsmd.packages import locks, requirements


def test_a_pipe_does_not_keep_a_build_waiting(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(
        requirements.RequirementsError, match="pipe cannot be used: it is no regular file"
    ):
        requirements.read(WantedPackages(requirements=str(pipe)))
    with pytest.raises(locks.LockError, match="no regular file"):
        locks.read(str(pipe), locks.parse)


def test_a_list_shows_nothing_of_a_secret(tmp_path: Path) -> None:
    """Code in a session may have written the list, and gets to read why there are no packages."""
    (tmp_path / "secret").write_text("TOKEN = secret\n")
    (tmp_path / "link").symlink_to("secret")
    with pytest.raises(requirements.RequirementsError, match="it is a symbolic link"):
        requirements.read(WantedPackages(requirements=str(tmp_path / "link")))
    (tmp_path / "list").write_text("-r secret\n")
    with pytest.raises(requirements.RequirementsError, match="secret: line 1: it") as refused:
        requirements.read(WantedPackages(requirements=str(tmp_path / "list")))
    assert "TOKEN" not in str(refused.value)


@pytest.mark.parametrize("included", ["../token", "sub/../../token", "{top}/token"])
def test_a_list_includes_no_file_from_elsewhere(tmp_path: Path, included: str) -> None:
    """A token would be taken for the name of a package, and asked for at the index."""
    (tmp_path / "token").write_text("abc123\n")
    (tmp_path / "project/sub").mkdir(parents=True)
    file = tmp_path / "project/list.txt"
    file.write_text(f"-r {included.format(top=tmp_path)}\n")
    with pytest.raises(requirements.RequirementsError, match=r"line 1: .* outside of .*/project:"):
        requirements.read(WantedPackages(requirements=str(file)))


def test_a_list_includes_no_file_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private/token").write_text("abc123\n")
    (tmp_path / "project").mkdir()
    (tmp_path / "project/sub").symlink_to("../private")
    file = tmp_path / "project/list.txt"
    file.write_text("-r sub/token\n")
    with pytest.raises(requirements.RequirementsError, match="symbolic link, or behind one"):
        requirements.read(WantedPackages(requirements=str(file)))


def test_lists_include_one_another_below_one_directory(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "list.txt").write_text("a\n-r sub/more.txt\n")
    (tmp_path / "sub/more.txt").write_text("b\n-r ../last.txt\n")
    (tmp_path / "last.txt").write_text("c\n")
    of_all = WantedPackages(requirements=str(tmp_path / "list.txt"))
    assert requirements.read(of_all) == ["a", "b", "c"]
    inner = str(tmp_path / "sub/more.txt")
    of_copy = WantedPackages(requirements=inner, included_below=str(tmp_path))
    assert requirements.read(of_copy) == ["b", "c"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("project = 3", "project is no table"),
        ("project.dependencies = 'six'", "project.dependencies is no list"),
        ("project.dependencies = [1]", "1 is no requirement"),
        ("project = ", "is not valid TOML"),
        (f"project = {'[' * 100_000}", "is not valid TOML"),
        ("[tool]", "names no package"),
    ],
)
def test_a_project_without_dependencies(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(text)
    with pytest.raises(requirements.RequirementsError, match=why):
        requirements.read(WantedPackages(project=str(file)))


@pytest.mark.parametrize("line", [f"six==1.16.0 --hash=sha256:{'0' * 64}", "six --hash=sha512:0"])
def test_no_hash_is_dropped(tmp_path: Path, line: str) -> None:
    """Resolving would install another file than the one that somebody has agreed to."""
    file = tmp_path / "requirements.txt"
    file.write_text(f"humanize\n{line}\n")
    with pytest.raises(requirements.RequirementsError, match="line 2 has a hash; then each line"):
        requirements.read(WantedPackages(requirements=str(file)))


def test_extras_and_groups_of_a_project_can_be_chosen(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(
        '[project]\ndependencies = ["a"]\n[project.optional-dependencies]\nFast_IO = ["b>=1"]\n'
        '[dependency-groups]\ntest = ["c"]\nall = [{include-group = "test"}]\n'
    )

    def chosen(*extras: str, groups: tuple[str, ...] = ()) -> list[str]:
        return requirements.read(
            WantedPackages(project=str(file), extras=extras, groups=groups),
        )

    assert chosen() == ["a"]
    assert chosen("fast-io", groups=("test",)) == ["a", "b>=1", "c"]
    with pytest.raises(requirements.RequirementsError, match="has no slow; it has fast-io"):
        chosen("slow")
    with pytest.raises(requirements.RequirementsError, match="is no requirement"):
        chosen(groups=("all",))
