"""Addresses at which MCP over HTTP may listen."""

from __future__ import annotations

import pytest

from nsm.http.listen_address import (
    ConfiguredPort,
    Port,
    UnixPath,
    own_hosts,
    own_url,
    parse_listen,
    parse_port,
)
from nsmd.config import config_file
from nsmd.config.config_file import ConfigError


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("127.0.0.1:7643", Port("127.0.0.1", 7643)),
        ("127.1.2.3:0", Port("127.1.2.3", 0)),
        ("localhost:80", Port("127.0.0.1", 80)),
        ("[::1]:7643", Port("::1", 7643)),
        ("[0:0:0:0:0:0:0:1]:7643", Port("::1", 7643)),
        ("unix:/run/user/1000/x.sock", UnixPath("/run/user/1000/x.sock")),
    ],
)
def test_loopback_and_sockets_are_taken(text: str, meant: Port | UnixPath) -> None:
    assert parse_listen(text) == meant


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0:7643",
        "[::]:7643",
        "192.168.1.1:7643",
        "[::ffff:192.168.1.1]:7643",
        "[::ffff:127.0.0.1]:7643",
        "[::1%lo]:7643",
        "[fe80::1]:7643",
        "example.com:7643",
        "localhost.example.com:7643",
        "::1:7643",
        "[127.0.0.1]:7643",
        "127.0.0.1",
        "127.0.0.1:",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "127.0.0.1:٣",
        "127.1:7643",
        "2130706433:7643",
        ":7643",
        "unix:relative.sock",
        "unix:",
        "unix:/a\0b",
        "",
    ],
)
def test_addresses_that_other_machines_reach_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_listen(text)


def test_hosts_that_clients_name_for_an_address() -> None:
    assert own_hosts(Port("127.0.0.1", 7643)) == {"127.0.0.1:7643", "localhost:7643"}
    assert own_hosts(Port("::1", 7643)) == {"[::1]:7643", "localhost:7643"}
    assert own_hosts(Port("127.0.0.1", 80)) >= {"127.0.0.1", "localhost", "localhost:80"}
    assert own_url(Port("::1", 7643)) == "http://[::1]:7643"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('listen = "0.0.0.0:80"', "other machines must not reach it"),
        ('hosts = ["http://a.example"]', "expected HOST or HOST:PORT"),
        ('origins = ["a.example"]', "expected SCHEME://HOST"),
        ('origins = ["https://a.example/"]', "without a path"),
        ('origins = ["*"]', "expected SCHEME://HOST"),
        ('project = "here"', "expected an absolute path"),
        ('network = "some"', 'expected "off", "full"'),
        ('network = { allow = ["http://a"] }', "http.network"),
        ('programs = ["Deploy It"]', "expected names of the bridge's programs"),
        ("max_connections = 0", "expected a whole number from 1"),
    ],
)
def test_mistakes_in_the_configuration_are_named(line: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_file.parse(f"[http]\n{line}\n".encode(), "config.toml")
    assert "config.toml: http." in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "port"),
    [
        ("web:8000", ConfiguredPort("web", 8000, "")),
        ("a.b-c_1:1=127.0.0.1:0", ConfiguredPort("a.b-c_1", 1, "127.0.0.1:0")),
        ("web:65535=unix:/run/a=b:1", ConfiguredPort("web", 65535, "unix:/run/a=b:1")),
    ],
)
def test_ports_of_sessions(text: str, port: ConfiguredPort) -> None:
    assert parse_port(text) == port


@pytest.mark.parametrize(
    "text",
    [
        *("", "web", "web:", ":8000", "web:0", "web:65536", "web:8000=", "web:8000=0.0.0.0:80"),
        *("a b:80", "a/b:80", "web:٣", "web:-1", "web:8000=unix:x", "web:8000=8000"),
    ],
)
def test_a_port_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_port(text)
