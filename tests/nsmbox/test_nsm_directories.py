"""nsm's own places: no box that is started above them, or where links lead to, changes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from box.world import HOME
from nsmbox.protection import nsm_directories, secrets
from nsmbox.start.launch import make_own
from realjail import needs_bwrap

if TYPE_CHECKING:
    from pathlib import Path

    from box.world import World

NOBODY = 4_000_000_000

DOTFILES = f"{HOME}/dotfiles"

LEADS_AROUND = """\
try() { "$@" 2>/dev/null && echo "did: $*"; }
try sh -c 'echo evil > nsm/tools/deploy.md'
try sh -c 'echo evil > nsm/tools/evil.md'
try sh -c 'echo evil > nsm/config.toml'
try rm -rf nsm/tools
try rm -f nsm/config.toml
try mv nsm aside
try mv nsm/tools aside
try mv -T --exchange nsm other
try ln -sfn other nsm/tools
try sh -c 'echo evil > state/nsm/boxes.json'
try mv state aside
try mv other elsewhere
cat nsm/tools/* nsm/config.toml state/nsm/* 2>/dev/null
"""


def test_links_are_followed_to_where_things_are(tmp_path: Path) -> None:
    home, dotfiles = tmp_path / "home", tmp_path / "dotfiles"
    (home / ".config/nsm/tools").mkdir(parents=True)
    (home / ".local/state/nsm").mkdir(parents=True)
    (dotfiles / "bridge").mkdir(parents=True)
    (dotfiles / "config.toml").write_text("")
    (dotfiles / "bridge/deploy.md").write_text("")
    (home / ".config/nsm/config.toml").symlink_to(dotfiles / "config.toml")
    (home / ".config/nsm/tools/deploy.md").symlink_to(dotfiles / "bridge/deploy.md")
    (home / ".config/nsm/tools/gone.md").symlink_to(dotfiles / "gone.md")
    known = secrets.look(str(home), {}, NOBODY, directory=str(dotfiles))
    assert known.own == (
        f"{dotfiles}/bridge/deploy.md",
        f"{dotfiles}/config.toml",
        f"{home}/.config/nsm",
        f"{home}/.local/state/nsm",
    )
    assert {secret.path for secret in known.secrets} >= set(known.own)
    assert nsm_directories.leading_to(known.own, str(dotfiles)) == (f"{dotfiles}/bridge",)
    assert nsm_directories.leading_to(known.own, str(home)) == (
        f"{home}/.config",
        f"{home}/.local",
        f"{home}/.local/state",
    )
    assert nsm_directories.leading_to(known.own, str(tmp_path / "elsewhere")) == ()


def test_what_lies_in_the_store_needs_nothing(tmp_path: Path) -> None:
    home, store = tmp_path / "home", tmp_path / "store"
    (home / ".config/nsm").mkdir(parents=True)
    (store / "1").mkdir(parents=True)
    (store / "1/config.toml").write_text("")
    (home / ".config/nsm/config.toml").symlink_to(store / "1/config.toml")
    names = list(nsm_directories.look([str(home)], {"NSM_BOX_STORE": str(store)}))
    assert f"{home}/.config/nsm" in names
    assert f"{home}/.config/nsm/config.toml" not in names
    assert f"{home}/.config/nsm/config.toml" in list(nsm_directories.look([str(home)], {}))


def test_a_link_to_nowhere_in_the_box_is_led_to_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config/nsm").mkdir(parents=True)
    (tmp_path / "dotfiles").mkdir()
    (tmp_path / "config/nsm/tools").symlink_to(tmp_path / "dotfiles/tools")
    for name in ("CONFIG", "STATE", "CACHE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / "config"))
    assert make_own([str(tmp_path / "dotfiles")])
    assert (tmp_path / "dotfiles/tools").is_dir()
    assert not make_own([str(tmp_path / "dotfiles")])


@pytest.mark.jail
@needs_bwrap
def test_no_box_changes_what_runs_on_the_host(world: World) -> None:
    """The user keeps all of it in a repository, and works there with an agent."""
    world.write(f"{DOTFILES}/nsm/config.toml", "[bridge]\nenabled = true\n")
    world.write(f"{DOTFILES}/nsm/tools/deploy.md", "the definition\n")
    world.write(f"{DOTFILES}/state/nsm/boxes.json", "{}\n")
    world.write(f"{DOTFILES}/other/file", "x\n")
    world.make_directory(f"{HOME}/.config/nsm")
    world.link(f"{HOME}/.config/nsm/config.toml", f"{DOTFILES}/nsm/config.toml")
    world.link(f"{HOME}/.config/nsm/tools", f"{DOTFILES}/nsm/tools")
    world.link(f"{HOME}/.local/state", f"{DOTFILES}/state")
    done = world.box("sh", "-c", LEADS_AROUND, directory=DOTFILES)
    assert done.stdout.splitlines() == ["did: mv other elsewhere"], done.stdout + done.stderr
    assert world.host(f"{HOME}/dotfiles/nsm/tools/deploy.md").read_text() == "the definition\n"
    assert sorted(p.name for p in world.host(f"{DOTFILES}/nsm").iterdir()) == [
        "config.toml",
        "tools",
    ]
    assert [p.name for p in world.host(f"{DOTFILES}/nsm/tools").iterdir()] == ["deploy.md"]
    assert world.host(f"{DOTFILES}/state/nsm/boxes.json").read_text() == "{}\n"
    refused = world.box("true", directory=f"{DOTFILES}/nsm/tools")
    assert refused.returncode != 0
    assert "which no box shows" in refused.stderr
