"""Addresses of hosts, and their tables in config.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsm.hosts.address import RemoteHost, find_host
from nsm.hosts.place import path_there
from nsm.wire.errors import HostError


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
def test_what_is_no_address_is_refused(config: Path, address: str) -> None:
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
