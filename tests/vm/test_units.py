"""The unit files, under a real `systemd --user` of an ordinary user who is not logged in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vm.machines import Person

SERVICE = "nsm-supervisor.service"


def show(ada: Person, *properties: str, unit: str = SERVICE) -> dict[str, str]:
    """Return systemd's properties of a unit."""
    command = f"systemctl --user show {unit} {' '.join(f'-p {name}' for name in properties)}"
    lines = ada.shell(command).check().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_the_first_client_starts_the_unit(ada: Person) -> None:
    ada.install_units()
    assert show(ada, "ActiveState") == {"ActiveState": "inactive"}
    pid = ada.reach()["pid"]
    shown = show(ada, "ActiveState", "SubState", "MainPID", "ControlGroup")
    assert (shown["ActiveState"], shown["SubState"]) == ("active", "running")
    assert pid == int(shown["MainPID"])
    assert "/user@1000.service/" in shown["ControlGroup"]
    assert ada.run("print(6 * 7)", session="one")["stdout"] == "42\n"


def count(ada: Person, session: str = "counted") -> int:
    """How often this was asked of a session, by what that remembers."""
    code = "n = globals().get('n', 0) + 1; print(n)"
    return int(ada.run(code, session=session)["stdout"])


def scopes(ada: Person) -> list[str]:
    """The scopes of sessions that there are."""
    shown = ada.shell("systemctl --user list-units --plain --no-legend 'nsm-sessions-*.scope'")
    return [line.split()[0] for line in shown.check().splitlines()]


def group_of(ada: Person, session: str) -> str:
    pid = ada.rows()[session]["pid"]
    return ada.root(f"cat /proc/{pid}/cgroup").strip().removeprefix("0::")


def test_sessions_are_in_a_scope_beside_it(ada: Person) -> None:
    assert count(ada) == 1
    (scope,) = scopes(ada)
    group = group_of(ada, "counted")
    assert f"/app.slice/{scope}/sessions/" in group
    limits = ada.root(f"cd /sys/fs/cgroup{group} && cat memory.max pids.max").split()
    assert all(limit.isdigit() for limit in limits), limits


def test_sessions_outlive_it_in_their_groups(ada: Person) -> None:
    """Control groups of sessions must not be in the way of the new process (219/CGROUP)."""
    before = show(ada, "MainPID", "NRestarts")
    group, had = group_of(ada, "counted"), scopes(ada)
    number = count(ada)
    main = "$(systemctl --user show -P MainPID nsm-supervisor)"
    ends = (
        f"systemctl --user restart {SERVICE}",
        f"kill -KILL {main}",
        f"kill -TERM {main}",
        f"systemctl --user reload {SERVICE}",
    )
    for end in ends:
        ada.shell(end).check()
        ada.reach()  # the socket holds who comes in between
        number += 1
        assert count(ada) == number, end
        assert (group_of(ada, "counted"), scopes(ada)) == (group, had), end
    after = show(ada, "MainPID", "NRestarts", "Result", "ActiveState")
    assert after["MainPID"] not in {"0", before["MainPID"]}
    assert int(after["NRestarts"]) == int(before["NRestarts"]) + 2
    assert (after["ActiveState"], after["Result"]) == ("active", "success")
    # What holds them is what the kernel still has, and new ones get theirs beside them.
    assert ada.nsm("inspect", "counted", "--json").stdout.count(group) >= 1
    assert scopes(ada)[0] in group_of_new(ada)


def group_of_new(ada: Person) -> str:
    assert count(ada, "later") == 1  # "new" would be given another name
    return group_of(ada, "later")


def test_a_supervisor_outlives_a_reload_and_a_new_manager(ada: Person) -> None:
    assert ada.run("kept = 'yes'", session="five")["exit_code"] == 0
    ada.shell("systemctl --user daemon-reload && systemctl --user daemon-reexec").check()
    assert ada.run("print(kept)", session="five")["stdout"] == "yes\n"


def test_lingering_starts_it_without_a_login(ada: Person) -> None:
    """A restart of the user's manager is like a reboot: all below it ends and starts again."""
    assert count(ada, "before") == 1
    ada.root("systemctl restart user@1000.service")
    assert show(ada, "ActiveState", unit="nsm-supervisor.socket") == {"ActiveState": "active"}
    ada.reach()
    assert "before" not in ada.rows()
    assert count(ada) == 1
    assert json.loads(ada.nsm("service", "status", "--json").check())["lingering"] is True


def test_a_stopped_unit_leaves_no_process_or_group(ada: Person) -> None:
    ada.run("import subprocess; subprocess.Popen(['sleep', '1000'])", session="six")
    ada.shell("systemctl --user stop nsm-supervisor.socket nsm-supervisor.service").check()
    assert show(ada, "ActiveState", "Result") == {"ActiveState": "inactive", "Result": "success"}
    left = ada.guest.run("pgrep", "-a", "-u", "ada", "-f", "sandbox|bwrap|nsm|sleep")
    assert left.stdout == ""
    # Neither groups nor scopes of sessions stay.
    groups = ada.root("find /sys/fs/cgroup -path '*user@1000.service/*' -name '*nsm*'")
    assert [line for line in groups.split() if not line.endswith(".slice")] == []
    ada.nsm("service", "uninstall", "--yes").check()
    assert show(ada, "LoadState") == {"LoadState": "not-found"}
