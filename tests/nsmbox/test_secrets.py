"""Paths that no box shows, and nsm's own among them."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING

import pytest

from box.world import HOME
from nsmbox.model.plan import BoxError, Mount
from nsmbox.protection import secrets
from nsmbox.protection.secrets import Known, Secret
from nsmbox.start.launch import make_own
from realjail import needs_bwrap

if TYPE_CHECKING:
    from pathlib import Path

    from box.world import World


NOBODY = 4_000_000_000
"""A user that no database has."""


def look(home: Path, directory: str | None = None, **variables: str) -> Known:
    return secrets.look(str(home), variables, NOBODY, directory=directory or str(home))


def bind(source: str, target: str = "") -> Mount:
    return Mount(kind="bind", source=source, target=target or source)


def names(known: Known, below: Path) -> list[str]:
    return [s.path for s in known.secrets if secrets.within(s.path, str(below))]


def test_secrets_are_known_by_their_real_paths(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (tmp_path / "dotfiles" / "gcloud").mkdir(parents=True)
    (home / ".config").symlink_to(tmp_path / "dotfiles")
    (home / ".netrc").write_text("")
    found = look(home)
    assert names(found, tmp_path) == [
        f"{tmp_path}/dotfiles/gcloud",
        f"{home}/.netrc",
        f"{home}/.ssh",
    ]
    assert [s.is_directory for s in found.secrets if s.path.startswith(str(tmp_path))] == [
        True,
        False,
        True,
    ]


def test_links_of_a_boxs_have_no_next_one_hide_the_system_or_its_directory(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "keys").mkdir(parents=True)
    (project / ".ssh").symlink_to("/usr/bin")
    (project / ".gnupg").symlink_to(".")
    assert not secrets.holder(found := look(tmp_path / "home", str(project)), "/usr/bin/env")
    assert names(found, project) == []
    (project / ".ssh").unlink()
    (project / ".ssh").symlink_to("keys")
    assert names(look(tmp_path / "home", str(project)), project) == [f"{project}/keys"]


def test_variables_name_further_ones(tmp_path: Path) -> None:
    for name in ("aws", "kube1", "kube2", "agent.sock", "docker.sock", "bus", "config"):
        (tmp_path / name).mkdir()
    (tmp_path / "config" / "gh").mkdir()
    found = look(
        tmp_path / "home",
        AWS_SHARED_CREDENTIALS_FILE=f"{tmp_path}/aws",
        KUBECONFIG=f"{tmp_path}/kube1:{tmp_path}/kube2:relative",
        SSH_AUTH_SOCK=f"{tmp_path}/agent.sock",
        DOCKER_HOST=f"unix://{tmp_path}/docker.sock",
        DBUS_SESSION_BUS_ADDRESS=f"unix:abstract=x;unix:path={tmp_path}/bus,guid=1",
        XDG_CONFIG_HOME=f"{tmp_path}/config",
        GNUPGHOME="relative",
    )
    assert [os.path.relpath(path, tmp_path) for path in names(found, tmp_path)] == [
        "agent.sock",
        "aws",
        "bus",
        "config/gh",
        "docker.sock",
        "kube1",
        "kube2",
    ]


def test_a_variable_cannot_make_everything_a_secret(tmp_path: Path) -> None:
    """Nothing could begin anywhere below what it names."""
    found = look(tmp_path, DOCKER_CONFIG=str(tmp_path), GNUPGHOME="/", XDG_RUNTIME_DIR="/tmp")
    assert {"/", "/tmp", str(tmp_path)}.isdisjoint(s.path for s in found.secrets)


def test_the_boxes_own_state_is_none(tmp_path: Path) -> None:
    (tmp_path / ".claudebox").mkdir()
    (tmp_path / ".claude").symlink_to(".claudebox")
    assert names(look(tmp_path), tmp_path) == []


def test_copies_of_homes_are_known_by_what_only_homes_have(tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    (backup / ".ssh").mkdir(parents=True)
    (backup / ".docker").mkdir()  # which many projects have
    assert names(look(tmp_path / "home", str(backup)), backup) == [f"{backup}/.ssh"]


def test_a_home_that_was_set_to_something_else_does_not_open_the_real_one(tmp_path: Path) -> None:
    real = os.path.realpath(pwd.getpwuid(os.geteuid()).pw_dir)
    known = secrets.look(str(tmp_path), {}, os.geteuid(), directory=str(tmp_path))
    assert known.homes == (str(tmp_path), real)
    assert secrets.why_refused(known, real) == "is your home directory"


KNOWN = Known(
    homes=("/home/ada",),
    secrets=(
        Secret(path="/home/ada/.config/gh", name="~/.config/gh", is_directory=True),
        Secret(path="/home/ada/.netrc", name="~/.netrc", is_directory=False),
        Secret(path="/srv/project/keys", name="~/.ssh", is_directory=True),
    ),
)


@pytest.mark.parametrize(
    ("directory", "why"),
    [
        ("/", "is the root of the file system"),
        ("/home/ada", "is your home directory"),
        ("/home", "holds your home directory, /home/ada"),
        ("/srv/project/keys", "is or lies in ~/.ssh, which no box shows"),
        ("/srv/project/keys/old", "is or lies in ~/.ssh, which no box shows"),
        ("/etc/nginx", "is or lies in /etc, which belongs to the system"),
        ("/run/user/1000", "is or lies in /run, which belongs to the system"),
        ("/tmp", "is shared by all programs of this host"),
        ("/nix/store", "is shared by all programs of this host"),
        ("/home/ada/project", None),
        ("/home/ada/.config", None),
        ("/home/adam", None),
        ("/srv/project", None),
        ("/tmp/project", None),
    ],
)
def test_no_box_begins_in_a_secret_place(directory: str, why: str | None) -> None:
    assert secrets.why_refused(KNOWN, directory) == why


def test_secrets_are_masked_wherever_they_would_be_seen() -> None:
    shown = [
        Mount(kind="tmpfs", target="/home/ada"),
        bind("/home/ada/.config"),
        Mount(kind="ro-bind", source="/srv/project", target="/elsewhere"),
        bind("/srv/project/keys-of-others"),
        bind("/srv/project/keys/public", "/tool"),  # asked for by itself: a tool's directory
    ]
    assert [(m.kind, m.target, m.masks_file) for m in secrets.masks(KNOWN, shown)] == [
        ("mask", "/elsewhere/keys", False),
        ("mask", "/home/ada/.config/gh", False),
    ]
    (of_file,) = secrets.masks(KNOWN, [bind("/home/ada/.netrc", "/n")])
    assert (of_file.target, of_file.masks_file) == ("/n", True)
    assert [m.target for m in secrets.masks(KNOWN, [bind("/", "/host")])] == [
        "/host/home/ada/.config/gh",
        "/host/home/ada/.netrc",
        "/host/srv/project/keys",
    ]


@pytest.mark.parametrize("real", ["/home/ada/.config/gh/hosts.yml", "/home", "/srv/project/keys"])
def test_secrets_are_not_shown_on_request_either(real: str) -> None:
    with pytest.raises(BoxError) as caught:
        secrets.check_shown(KNOWN, "~/asked", real)
    assert (caught.value.exit_code, caught.value.message[:8]) == (2, "~/asked ")
    secrets.check_shown(KNOWN, "~/asked", "/home/ada/.config/nvim")


def test_the_working_directory_is_the_kernels_not_a_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path / "link")
    assert secrets.working_directory(KNOWN) == f"{tmp_path}/real"


def test_a_deleted_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BoxError, match="has been deleted"):
        secrets.working_directory(secrets.look(str(tmp_path), {}, NOBODY))
    monkeypatch.chdir(tmp_path)


def test_an_unreadable_working_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def denied(path: str, mode: int) -> bool:
        return (path, mode) != (str(tmp_path), os.R_OK | os.X_OK)

    monkeypatch.setattr(os, "access", denied)  # root may read everything
    with pytest.raises(BoxError, match="cannot be read by you") as caught:
        secrets.check_directory(KNOWN, str(tmp_path))
    assert caught.value.hint == f"Allow it: chmod u+rx {tmp_path}"


def test_names_of_paths_cannot_write_to_the_terminal() -> None:
    with pytest.raises(BoxError) as caught:
        secrets.check_directory(KNOWN, "/etc/\x1b]0;x\a\udcff\n")
    assert caught.value.message.startswith("/etc/\ufffd]0;x\ufffd\ufffd\ufffd is or lies in /etc")


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
    assert secrets.leading_to(known.own, str(dotfiles)) == (f"{dotfiles}/bridge",)
    assert secrets.leading_to(known.own, str(home)) == (
        f"{home}/.config",
        f"{home}/.local",
        f"{home}/.local/state",
    )
    assert secrets.leading_to(known.own, str(tmp_path / "elsewhere")) == ()


def test_files_in_the_store_need_no_protection(tmp_path: Path) -> None:
    home, store = tmp_path / "home", tmp_path / "store"
    (home / ".config/nsm").mkdir(parents=True)
    (store / "1").mkdir(parents=True)
    (store / "1/config.toml").write_text("")
    (home / ".config/nsm/config.toml").symlink_to(store / "1/config.toml")
    names = list(secrets.own_directories([str(home)], {"NSM_BOX_STORE": str(store)}))
    assert f"{home}/.config/nsm" in names
    assert f"{home}/.config/nsm/config.toml" not in names
    assert f"{home}/.config/nsm/config.toml" in list(secrets.own_directories([str(home)], {}))


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
