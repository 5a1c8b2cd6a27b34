"""The unit files, under a real `systemd --user` of an ordinary user who is not logged in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vm.machines import Person

SERVICE = "nsm-supervisor.service"


def show(ada: Person, *properties: str, unit: str = SERVICE) -> dict[str, str]:
    """What systemd says of a unit."""
    command = f"systemctl --user show {unit} {' '.join(f'-p {name}' for name in properties)}"
    lines = ada.shell(command).check().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_the_first_client_starts_it(ada: Person) -> None:
    ada.install_units()
    assert show(ada, "ActiveState") == {"ActiveState": "inactive"}
    pid = ada.reach()["pid"]
    shown = show(ada, "ActiveState", "SubState", "MainPID", "ControlGroup")
    assert (shown["ActiveState"], shown["SubState"]) == ("active", "running")
    assert pid == int(shown["MainPID"])
    assert "/user@1000.service/" in shown["ControlGroup"]
    assert ada.run("print(6 * 7)", session="one")["stdout"] == "42\n"


def test_it_is_there_again_after_it_was_killed(ada: Person) -> None:
    before = show(ada, "MainPID", "NRestarts")
    ada.root(f"kill -KILL {before['MainPID']}")
    ada.reach()  # the socket holds who comes in between
    assert ada.run("print(6 * 7)", session="two")["stdout"] == "42\n"
    after = show(ada, "MainPID", "NRestarts", "Result")
    assert after["MainPID"] not in {"0", before["MainPID"]}
    assert int(after["NRestarts"]) == int(before["NRestarts"]) + 1


def test_it_restarts_with_live_sessions(ada: Person) -> None:
    """Control groups of sessions must not be in the way of the new process (219/CGROUP)."""
    for name in ("three", "four"):
        assert ada.run("x = 1", session=name)["exit_code"] == 0
    ada.shell(f"systemctl --user restart {SERVICE}").check()
    ada.reach()
    assert ada.run("print(6 * 7)", session="three")["stdout"] == "42\n"
    assert show(ada, "ActiveState", "Result") == {"ActiveState": "active", "Result": "success"}


def test_it_outlives_a_reload_and_a_new_manager(ada: Person) -> None:
    assert ada.run("kept = 'yes'", session="five")["exit_code"] == 0
    ada.shell("systemctl --user daemon-reload && systemctl --user daemon-reexec").check()
    assert ada.run("print(kept)", session="five")["stdout"] == "yes\n"


def test_stopped_it_leaves_nothing(ada: Person) -> None:
    ada.run("import subprocess; subprocess.Popen(['sleep', '1000'])", session="six")
    ada.shell("systemctl --user stop nsm-supervisor.socket nsm-supervisor.service").check()
    assert show(ada, "ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}
    left = ada.guest.run("pgrep", "-a", "-u", "ada", "-f", "sandbox|bwrap|nsm|sleep")
    assert left.stdout == ""
    # Neither groups nor scopes of sessions stay.
    groups = ada.root("find /sys/fs/cgroup -path '*user@1000.service/*' -name '*nsm*'")
    assert [line for line in groups.split() if not line.endswith(".slice")] == []
