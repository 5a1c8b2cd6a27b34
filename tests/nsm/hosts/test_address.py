"""Addresses of hosts, and their tables in config.toml."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from nsm.hosts import ssh
from nsm.hosts.address import RemoteHost, find_host
from nsm.hosts.place import path_there
from nsm.wire.errors import HostError, HostUnreachableError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("NSM_SSH", "NSM_HOST_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "nsm").mkdir()
    return tmp_path / "nsm" / "config.toml"


@pytest.mark.parametrize(
    ("address", "destination"),
    [
        ("ssh://Big", ("--", "Big")),
        ("ssh://me@big", ("-l", "me", "--", "big")),
        ("ssh://me@big.example.org:2222/", ("-p", "2222", "-l", "me", "--", "big.example.org")),
        ("ssh://[::1]:22", ("-p", "22", "--", "::1")),
    ],
)
def test_an_address_becomes_arguments_of_ssh(
    config: Path, address: str, destination: tuple[str, ...]
) -> None:
    assert not config.exists()
    assert find_host(address).destination == destination


@pytest.mark.parametrize(
    "address",
    [
        "ssh://",
        "ssh://-oProxyCommand=evil",
        "ssh://-l@big",
        "ssh://me:secret@big",
        "ssh://big/srv",
        "ssh://big:port",
        "ssh://a b",
        "ssh://big?x=1",
        "http://big",
    ],
)
def test_an_address_of_another_form_is_refused(config: Path, address: str) -> None:
    assert not config.exists()
    with pytest.raises(HostError, match="is not an address of a host"):
        find_host(address)


def test_a_name_is_looked_up(config: Path) -> None:
    config.write_text(
        '[hosts.big]\naddress = "ssh://me@big:23"\nssh = "ssh -J gate"\nproject = "copy"\n'
        '[hosts.plain]\n[hosts.wrong]\nport = 22\n[hosts.way]\nproject = "carrier pigeon"\n'
        '[hosts.old]\nproject = "git"\n'
    )
    big = RemoteHost("big", "big", "me", 23, ("ssh", "-J", "gate"), project="copy")
    assert find_host("big") == big
    assert find_host("plain").destination == ("--", "plain")
    with pytest.raises(HostError, match=r"there is no host 'bigger'"):
        find_host("bigger")
    with pytest.raises(HostError, match=r"hosts.wrong.port: unknown key"):
        find_host("wrong")
    with pytest.raises(HostError, match="carrier pigeon"):
        find_host("way")
    with pytest.raises(HostError, match=r'hosts.old.project: found \'git\', expected "copy"'):
        find_host("old")


def test_directories_of_projects_are_mapped() -> None:
    directories = (("/home/me", "/srv/me"), ("/home/me/work", "/data"))
    host = RemoteHost("big", "big", directories=directories)
    assert path_there(host, "/home/me/work/shop") == "/data/shop"
    assert path_there(host, "/home/me/work") == "/data"
    assert path_there(host, "/home/me/other") == "/srv/me/other"
    assert path_there(host, "/home/mean") == "/home/mean"
    assert path_there(host._replace(project="none"), "/home/me/work") is None


# Errors of ssh, as people read them.


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("echo 'Port forwarding failed' >&2; exit 255", "Port forwarding failed"),
        ("exit 255", "it did not say why"),
        ("exec sleep 1000", "the process of the connection has not answered for "),
    ],
)
def test_a_forward_that_fails_tells_why_and_the_next_command(
    does: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what happened and what to do next, with a command to copy."""
    monkeypatch.setattr(ssh, "_MUX_TIMEOUT_S", 0.2)
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    host = RemoteHost("big", "big.example.org", user="me", ssh=(str(program),))
    with pytest.raises(HostUnreachableError) as caught:
        ssh.SshConnection(host, str(tmp_path)).forward("/run/here", "/run/there")
    assert caught.value.message.startswith(f"ssh could not forward /run/here to big: {said}")
    command = f"`{program} -S {tmp_path}/ssh -O exit -l me -- big.example.org`"
    assert command in (caught.value.hint or "")
    assert f"{tmp_path}/ssh.log" in (caught.value.hint or "")
