"""The bridge's rows: definitions, and the file that calls are written down in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from doctor_world import World, named
from nsmd.doctor import supervisor
from nsmd.doctor.supervisor import check_bridge
from nsmd.model.settings import BridgeSettings, HttpSettings, Settings

if TYPE_CHECKING:
    from nsm.checks import HostCheck

ON = Settings(bridge=BridgeSettings(enabled=True))
AUDIT = "/home/me/.local/state/nsm/audit.log"


def programs(world: World) -> HostCheck:
    return named(check_bridge(world.host, ON), "programs of the bridge")


def audit(world: World) -> HostCheck:
    return named(check_bridge(world.host, ON), "audit of the bridge")


def test_nothing_is_said_where_it_is_off(world: World) -> None:
    world.file("/home/me/.config/nsm/tools/broken.md", "nothing")
    assert list(check_bridge(world.host, Settings())) == []


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
            bridge=BridgeSettings(enabled=enabled),
            http=HttpSettings(enabled=True, programs=names),
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
