"""Paths of a box on hosts with Nix: found in made-up hosts, and their consequences."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from nsmbox.host import nix_host
from nsmbox.model.plan import Mount


class NixOS:
    """A host whose programs are all in a store, shown by profiles of links, as on NixOS."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = root / "nix/store"
        self.profile = self.store / "00-system-path/bin"
        self.profile.mkdir(parents=True)
        (root / "run/current-system").mkdir(parents=True)
        (root / "run/current-system/sw").symlink_to(self.profile.parent)
        self.add("11-bash", "bash")
        self.link("11-bash", "sh", "bash")
        self.add("22-coreutils", "coreutils")
        for name in ("ls", "env"):
            self.link("22-coreutils", name, "coreutils")
        self.add("33-git", "git", "git-receive-pack")
        self.add("44-openssh", "ssh", "scp", "ssh-add")
        self.add("55-nodejs", "node", "npm")
        self.add("66-nix", "nix")
        for place, target in (
            ("bin/sh", "11-bash/bin/sh"),
            ("usr/bin/env", "22-coreutils/bin/env"),
        ):
            (root / place).parent.mkdir(parents=True, exist_ok=True)
            (root / place).symlink_to(self.store / target)
        (root / "etc/nix").mkdir(parents=True)

    def add(self, package: str, *names: str, text: str = "#!/bin/sh\n") -> Path:
        for name in names:
            program = self.store / package / "bin" / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(text)
            program.chmod(0o755)
            (self.profile / name).unlink(missing_ok=True)
            (self.profile / name).symlink_to(program)
        return self.store / package / "bin" / names[0]

    def link(self, package: str, name: str, target: str) -> None:
        program = self.store / package / "bin" / name
        program.symlink_to(target)
        (self.profile / name).symlink_to(program)

    def state(self, *, daemon: bool = True) -> Path:
        state = self.root / "nix/var/nix"
        for name in ("profiles", "gcroots", "db"):
            (state / name).mkdir(parents=True)
        if daemon:
            (state / "daemon-socket").mkdir()
            (state / "daemon-socket/socket").touch()
        return state

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.root}/run/wrappers/bin:{self.root}/run/current-system/sw/bin",
            nix_host.STORE_VARIABLE: str(self.store),
        }

    def look(self, command: str | Path = "", **variables: str) -> nix_host.HostNix:
        found = nix_host.look(
            self.environment | variables,
            str(command or self.root / "run/current-system/sw/bin/bash"),
            root=str(self.root),
            user="alice",
            groups=("users", "wheel"),
        )
        assert found is not None
        return found

    def program(self, name: str, start: bytes) -> Path:
        """A program under a home directory, of none of the packages."""
        path = self.root / "home/alice/.local/bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(start)
        path.chmod(0o755)
        return path


@pytest.fixture
def host(tmp_path: Path) -> NixOS:
    return NixOS(tmp_path)


def executable(loader: str = "") -> bytes:
    """The start of an ELF program of 64 bits."""
    name = loader.encode() + b"\0"
    head = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, 9, 9, 4096)
    interp = struct.pack("<IIQQQQQQ", 3 if loader else 4, 4, 176, 0, 0, len(name), len(name), 1)
    return head + load + interp + name


# Files' loaders


@pytest.mark.parametrize(
    "start",
    [b"", b"#!/bin/sh\n", executable(), b"\x7fELF\x01\x01" + bytes(90), executable("/x")[:100]],
    ids=["empty", "script", "static", "32 bits", "cut off"],
)
def test_no_loader(start: bytes) -> None:
    assert nix_host.loader_of(start) == ""


# Looking


def test_no_store_no_nix(tmp_path: Path) -> None:
    assert nix_host.look({nix_host.STORE_VARIABLE: str(tmp_path / "store")}, "/bin/sh") is None


def test_path_has_packages_and_no_profile(host: NixOS) -> None:
    nix = host.look()
    names = [Path(each).parent.name for each in nix_host.path(nix)]
    assert names == ["11-bash", "22-coreutils", "33-git", "55-nodejs", "66-nix"]
    assert nix.alone
    assert nix.left_out == ()


@pytest.mark.parametrize(
    "name", ["gpg2", "gpgconf", "ssh", "scp", "age", "age-keygen", "tailscale"]
)
def test_a_directory_with_a_forbidden_program_is_left_out_and_said(host: NixOS, name: str) -> None:
    host.add("77-everything", "rg", name)
    nix = host.look()
    assert not [each for each in nix.tools if "77-everything" in each]
    assert nix.left_out == ("rg",)
    [note] = nix_host.notes(nix, "alice")
    assert "rg" in note


def test_a_package_says_what_is_on_path(host: NixOS) -> None:
    tools = ":".join(str(host.store / each / "bin") for each in ("22-coreutils", "11-bash"))
    own = host.add("88-claude", "claude")
    nix = host.look(host.root / "run/current-system/sw/bin/claude", NSM_BOX_TOOLS=tools)
    assert nix.tools == (*tools.split(":"), str(own.parent))


def test_the_interpreter_of_a_packages_script_is_on_path(host: NixOS) -> None:
    tools = ":".join(str(host.store / each / "bin") for each in ("22-coreutils", "11-bash"))
    claude = host.program("claude", b"#!/usr/bin/env node\n")
    nix = host.look(claude, NSM_BOX_TOOLS=tools)
    assert nix.tools == (*tools.split(":"), str(host.store / "55-nodejs/bin"))
    assert nix.alone


def test_a_forbidden_directory_never_comes_with_the_command(host: NixOS) -> None:
    host.add("44-openssh", "claude")
    nix = host.look(
        host.root / "run/current-system/sw/bin/claude", NSM_BOX_TOOLS="/nix/store/x/bin"
    )
    assert nix.tools == ("/nix/store/x/bin",)


def test_a_program_of_another_loader_needs_the_host(host: NixOS) -> None:
    loader = "/lib64/ld-linux-x86-64.so.2"
    claude = host.program("claude", executable(loader))
    assert not host.look(claude).alone
    assert host.look(host.program("static", executable())).alone
    # With nix-ld there is a loader at that place, which is in the store.
    own = host.add("99-nix-ld", "nix-ld")
    (host.root / "lib64").mkdir()
    (host.root / loader[1:]).symlink_to(host.store / "99-nix-ld" / "bin" / Path(loader).name)
    (own.parent / Path(loader).name).touch()
    libraries = host.root / "run/current-system/sw/share/nix-ld/lib"
    libraries.mkdir(parents=True)
    nix = host.look(claude, NIX_LD_LIBRARY_PATH=str(libraries), NIX_LD="/elsewhere/ld.so")
    assert nix.alone
    assert (loader, str(own.parent / Path(loader).name)) in nix.links
    assert dict(nix.variables)["NIX_LD_LIBRARY_PATH"] == str(libraries.resolve())
    assert "NIX_LD" not in dict(nix.variables)


def test_a_script_of_a_program_outside_of_the_store_needs_the_host(host: NixOS) -> None:
    node = host.program("node22", executable("/lib64/ld-linux-x86-64.so.2"))
    assert not host.look(host.program("claude", f"#!{node}\n".encode())).alone
    assert host.look(host.program("other", b"#!/bin/sh\n")).alone


def test_without_a_shell_in_the_store_the_host_is_needed(host: NixOS) -> None:
    (host.root / "bin/sh").unlink()  # as on a distribution with Nix beside it
    nix = host.look(PATH="/usr/bin")
    assert not nix.alone
    assert nix_host.mounts(nix) == (
        Mount(
            kind="ro-bind", source=str(host.store), target=str(host.store), why="Nix store, live"
        ),
    )


# The daemon


def test_the_shell_is_one_that_the_box_has(host: NixOS) -> None:
    host.add("aa-zsh", "zsh")
    profile = host.root / "run/current-system/sw/bin"
    zsh = dict(host.look(SHELL=str(profile / "zsh")).variables)["SHELL"]
    assert zsh == str(host.store / "aa-zsh/bin/zsh")
    other = dict(host.look(SHELL="/usr/bin/fish").variables)["SHELL"]
    assert other == str(host.store / "11-bash/bin/sh")
    assert "SHELL" not in dict(host.look().variables)


def test_locales_and_terminals_of_the_store(host: NixOS) -> None:
    archive = host.store / "bb-locales/locale-archive"
    archive.parent.mkdir()
    archive.touch()
    (host.root / "archive").symlink_to(archive)
    nix = host.look(
        LOCALE_ARCHIVE=str(host.root / "archive"), TERMINFO_DIRS=f"{archive.parent}:/etc/terminfo"
    )
    assert dict(nix.variables) == {
        "LOCALE_ARCHIVE": str(archive),
        "TERMINFO_DIRS": str(archive.parent),
    }
    assert [(each.name, each.value) for each in nix_host.variables(nix)] == list(nix.variables)


def test_the_daemon_is_reached_and_what_the_host_runs_later_is_kept(host: NixOS) -> None:
    state = host.state()
    made = nix_host.mounts(host.look())
    assert [(each.kind, each.target) for each in made] == [
        ("ro-bind", str(host.store)),
        ("bind", str(state)),
        ("ro-bind", str(state / "profiles")),
        ("ro-bind", str(state / "gcroots")),
        ("symlink", "/bin/sh"),
        ("symlink", "/usr/bin/env"),
    ]
    assert made[-1].source == str(host.store / "22-coreutils/bin/env")


def test_without_a_daemon_nothing_is_written(host: NixOS) -> None:
    state = host.state(daemon=False)
    nix = host.look()
    assert [each.target for each in nix_host.mounts(nix) if each.kept] == []
    assert str(state) in {each.target for each in nix_host.mounts(nix)}
    [note] = nix_host.notes(nix, "alice")
    assert "no daemon" in note


def test_trusted_users_are_told(host: NixOS) -> None:
    host.state()
    (host.root / "etc/nix/nix.conf").write_text("trusted-users = root\n!include more.conf\n")
    assert nix_host.notes(host.look(), "alice") == ()
    (host.root / "etc/nix/more.conf").write_text("extra-trusted-users = @wheel # and more\n")
    [note] = nix_host.notes(host.look(), "alice")
    assert note.startswith("Nix' daemon trusts alice (trusted-users has @wheel)")


@pytest.mark.parametrize(
    ("lines", "entry"),
    [
        ([], ""),
        (["trusted-users = root"], ""),
        (["trusted-users = root alice"], "alice"),
        (["trusted-users = *"], "*"),
        (["trusted-users = @wheel"], "@wheel"),
        (["trusted-users = @other"], ""),
        (["# trusted-users = alice"], ""),
        (["trusted-users = alice", "trusted-users = root"], ""),
        (["allowed-users = alice"], ""),
    ],
)
def test_trusted_users(lines: list[str], entry: str) -> None:
    assert nix_host.trusting(lines, "alice", frozenset({"wheel"})) == entry


def test_a_configuration_that_includes_itself(host: NixOS) -> None:
    (host.root / "etc/nix/nix.conf").write_text("include nix.conf\ntrusted-users = alice\n")
    assert host.look().trusted == "alice"
