"""The rows of MCP over HTTP: as the supervisor says, or as the next one will find it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import samples
from doctor_world import World, named
from nsm.http.listen_address import Port
from nsm.http.token import ensure
from nsmd.doctor import supervisor
from nsmd.doctor.supervisor import NAME, check_bridge, check_http
from nsmd.http.service import bound
from nsmd.model.settings import BridgeSettings, HttpSettings, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nsm.checks import HostCheck


HTTP: Mapping[str, Any] = samples.status()["http"]
LISTEN = "127.0.0.1:7643"
TABLE = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
ROW = "   0: {address} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {uid} 0 1\n"


def on(listen: str = LISTEN) -> Settings:
    return Settings(http=HttpSettings(enabled=True, listen=listen))


def nobody(path: str) -> None:
    del path


def row(world: World, listen: str = LISTEN) -> HostCheck:
    return named(check_http(world.host, on(listen), say=nobody), NAME)


def said(world: World, **changes: Any) -> HostCheck:
    facts: Mapping[str, Any] = {**HTTP, "problem": "", **changes}
    return named(check_http(world.host, on(), say=lambda _: facts), NAME)


def test_the_state_of_http_is_told(world: World) -> None:
    url = "http://127.0.0.1:7643/mcp"
    assert (said(world).status, said(world).detail) == ("ok", url)
    off = said(world, enabled=False, url="")
    assert (off.status, off.fix) == ("warn", "nsm reload")
    assert off.detail == f"the supervisor serves it not at all; configured is {LISTEN}"
    other = said(world, listen="unix:/run/x")
    assert other.detail == f"the supervisor serves it at unix:/run/x; configured is {LISTEN}"
    lacks = said(world, problem="project: /gone is not there.")
    assert (lacks.status, lacks.detail) == ("warn", f"{url}: project: /gone is not there.")
    world.file("/proc/net/tcp", TABLE + ROW.format(address="0100007F:1DDB", state="0A", uid=1234))
    taken = said(world, url="", problem="It is taken.")
    assert taken.detail == (
        f"not served: It is taken. (a process of user 1234's listens at {LISTEN})"
    )


@pytest.mark.parametrize(
    ("table", "listen", "address", "state", "taken"),
    [
        ("tcp", LISTEN, "0100007F:1DDB", "0A", True),
        ("tcp", LISTEN, "00000000:1DDB", "0A", True),
        ("tcp", LISTEN, "0100007F:1DDB", "01", False),
        ("tcp", LISTEN, "0100007F:1DDC", "0A", False),
        ("tcp", LISTEN, "0200007F:1DDB", "0A", False),
        ("tcp6", LISTEN, "0100007F:1DDB", "0A", False),
        ("tcp6", "[::1]:7643", "00000000000000000000000001000000:1DDB", "0A", True),
        ("tcp6", "[::1]:7643", "00000000000000000000000000000000:1DDB", "0A", True),
    ],
)
def test_a_port_that_the_next_supervisor_would_find_taken(
    world: World, table: str, listen: str, address: str, state: str, *, taken: bool
) -> None:
    assert (row(world, listen).status, row(world).detail) == (
        "ok",
        f"{LISTEN}, once a supervisor runs",
    )
    world.file(f"/proc/net/{table}", TABLE + ROW.format(address=address, state=state, uid=1000))
    check = row(world, listen)
    assert (check.status == "warn") == taken
    if taken:
        assert check.detail.endswith(f"and a process of yours listens at {listen}")
        assert "nsm http token --rotate" in check.fix


def test_the_table_of_ports_of_this_kernel_is_read(world: World) -> None:
    here = replace(world.host, root="/", uid=os.geteuid(), socket="/nowhere", state="/nowhere")
    with bound(Port("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        check = named(check_http(here, on(listen)), NAME)
    assert check.detail == f"no supervisor answers, and a process of yours listens at {listen}"


def test_a_socket_where_others_could_put_theirs(world: World) -> None:
    place = world.root / "d"
    (place / "x").mkdir(mode=0o700, parents=True)
    assert row(world, "unix:/d/x/s").status == "ok"
    place.chmod(0o777)
    check = row(world, "unix:/d/x/s")
    assert (check.status, "yours alone" in check.fix) == ("warn", True)


def test_the_token(world: World) -> None:
    def token() -> HostCheck:
        return named(check_http(world.host, on(), say=nobody), "token of MCP over HTTP")

    assert (token().status, token().detail.endswith("once it is served")) == ("ok", True)
    served = named(check_http(world.host, on(), say=lambda _: HTTP), "token of MCP over HTTP")
    assert (served.status, served.detail.endswith("is gone")) == ("warn", True)
    assert served.fix.startswith("nsm http token: ")
    path = world.root / "home/me/.local/state/nsm/http-token"
    path.parent.mkdir(parents=True, mode=0o700)
    secret = ensure(str(path))
    assert (token().status, secret in token().detail) == ("ok", False)
    path.chmod(0o644)
    assert token().status == "warn"
    assert "open to others" in token().detail


# The bridge's rows: definitions, and the file that calls are written down in.


ON = Settings(bridge=BridgeSettings(enabled=True))
AUDIT = "/home/me/.local/state/nsm/audit.log"


def programs(world: World) -> HostCheck:
    return named(check_bridge(world.host, ON), "programs of the bridge")


def audit(world: World) -> HostCheck:
    return named(check_bridge(world.host, ON), "audit of the bridge")


def test_definitions(world: World) -> None:
    assert (programs(world).status, programs(world).detail) == ("ok", "none")
    command = world.root / "deploy"
    world.program("/deploy")
    tools = "/home/me/.config/nsm/tools"
    front = f"---\nname: deploy\ndescription: Deploys.\ncommand: {command}\n---\n"
    world.file(f"{tools}/deploy.md", front)
    assert (programs(world).status, programs(world).detail) == ("ok", "deploy")
    world.file(f"{tools}/other.md", front.replace("name: deploy", "nam: other"))
    row = programs(world)
    assert row.status == "warn"
    assert row.detail.startswith("deploy; files with mistakes:\n")
    assert "other.md:" in row.detail
    assert "nsm bridge check" in row.fix


@pytest.mark.parametrize("enabled", [True, False])
def test_programs_over_http_that_are_not_there(world: World, enabled: bool) -> None:
    command = world.root / "deploy"
    world.program("/deploy")
    front = f"---\nname: deploy\ndescription: Deploys.\ncommand: {command}\n---\n"
    world.file("/home/me/.config/nsm/tools/deploy.md", front)

    def rows(*names: str) -> list[tuple[str, str]]:
        settings = Settings(
            bridge=BridgeSettings(enabled=enabled), http=HttpSettings(enabled=True, programs=names)
        )
        found = check_bridge(world.host, settings)
        return [(row.status, row.detail) for row in found if row.name == "programs over HTTP"]

    assert rows() == []
    if enabled:
        assert rows("deploy") == []
        assert rows("deploy", "delpoy") == [("warn", "`[http] programs`: no file describes delpoy")]
    else:
        assert rows("deploy") == [("warn", "`[http] programs`: the bridge is off: deploy")]


def test_the_audit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (audit(world).status, AUDIT in audit(world).detail) == ("ok", True)
    world.file(AUDIT, "x" * (1 << 20))
    world.file(f"{AUDIT}.1", "x" * (2 << 20))
    assert (audit(world).status, audit(world).detail) == ("ok", f"{AUDIT}, 3 MiB in all")
    monkeypatch.setattr(supervisor, "MUCH_BYTES", 1 << 20)
    assert (audit(world).status, "Move old ones" in audit(world).fix) == ("warn", True)


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "in-a-file"])
def test_an_audit_that_cannot_be_written(world: World, kind: str) -> None:
    path = world.root / AUDIT.lstrip("/")
    if kind == "in-a-file":
        world.file("/home/me/.local/state/nsm")
    else:
        path.parent.mkdir(parents=True)
    match kind:
        case "link":
            path.symlink_to("/dev/null")
        case "fifo":
            os.mkfifo(path)
        case "directory":
            path.mkdir()
        case _:
            pass
    assert audit(world).status == "fail"
    assert "no program" in audit(world).fix


def test_an_audit_that_is_read_only(world: World) -> None:
    world.file(AUDIT).chmod(0o400)
    if os.geteuid():
        assert (audit(world).status, f"chmod 600 {AUDIT}" in audit(world).fix) == ("fail", True)
        assert "(mode 0400)" in audit(world).detail
    else:  # who may write whatever the mode is
        assert audit(world).status == "ok"
