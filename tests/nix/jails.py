"""View of Python code in a jail of the Nix layer, and the limits of that view."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import standin
from nsmd.model.policy import limit_variables

if TYPE_CHECKING:
    from collections.abc import Collection

LOOK = """
import ctypes, json, os, socket

def attempt(action):
    try:
        return action()
    except OSError as error:
        return error.strerror

def connect(port):
    with socket.create_connection(("127.0.0.1", port), 5):
        return "connected"

def write(path):
    with open(path, "w") as file:
        return file.write("x")

status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
prefix = ctypes.CDLL(None).prctl(39, 0, 0, 0, 0)  # PR_GET_NO_NEW_PRIVS
print(json.dumps({
    "root": sorted(os.listdir("/")),
    "store": sorted(os.listdir(STORE)),
    "mounts": sorted({line.split()[4] for line in open("/proc/self/mountinfo")}),
    "environment": sorted(os.environ),
    "capabilities": [status[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd")],
    "no new privileges": prefix,
    "seccomp": status["Seccomp"].strip(),
    "user": [os.getuid(), os.getgid()],
    "interfaces": [name for _, name in socket.if_nameindex()],
    "loopback": attempt(lambda: connect(PORT)),
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
    "host": socket.gethostname(),
    "project": attempt(lambda: open("/project/numbers.txt").read()),
    "written": {path: attempt(lambda: write(path)) for path in (
        "/project/new", "/project/numbers.txt", "/new", "/etc/new", "/dev/new", STORE + "/new",
        "/workspace/new", "/tmp/new", "/dev/shm/new")},
}))
"""


def look(place: standin.Place, port: int) -> str:
    """Code that prints what it sees as JSON.

    Args:
        port: of the host's loopback, where somebody listens.
    """
    return LOOK.replace("STORE", repr(str(place.store))).replace("PORT", str(port))


def closure(place: standin.Place, artifact: Path) -> set[str]:
    """The store paths that an artifact needs, and itself, by their names."""
    done = standin.nix_tool(place, "nix-store", "--query", "--requisites", str(artifact))
    return {Path(line).name for line in done.splitlines()}


def check_jail(
    seen: dict[str, Any], place: standin.Place, needed: Collection[str], *, session: bool = False
) -> None:
    """Check that a jail of `test-sandbox` with a project is complete and closed.

    Args:
        seen: what `look` printed in it.
        needed: names of the artifact's whole closure.
        session: that a supervisor started it: it has a policy, and what programs are told of it.
    """
    top = place.store.parts[1]
    root = {"bin", "dev", "etc", "proc", "project", "tmp", "workspace", top}
    assert set(seen["root"]) == root | ({"run"} if session else set[str]())
    others = {path for path in seen["mounts"] if not Path(path).is_relative_to(place.store)}
    assert not [path for path in others if path.startswith(("/usr", "/lib", "/home", "/root"))]

    # What it needs at run time is there, and nothing else of the store is.
    assert set(seen["store"]) < set(needed)
    assert not {name for name in needed if name.endswith("-nsm-host-seed")}
    packages = {name.partition("-")[2] for name in seen["store"]}
    assert {"python3-host", "bash-host", "coreutils-host", "host-libraries"} <= packages
    assert not packages & {"nsm-host-seed", "gnutar-host", "jq-host", "bubblewrap-host"}

    known = set("HOME LANG LOGNAME PATH PWD SHLVL TERM TMPDIR USER _".split())
    if session:
        known |= {"PIP_RETRIES", "npm_config_fetch_retries"}  # the network is off
        known |= set(limit_variables(1024))
    assert not set(seen["environment"]) - known
    assert seen["capabilities"] == ["0" * 16] * 4
    assert seen["no new privileges"] == 1
    assert seen["seccomp"] == "2"
    assert seen["user"] == [1000, 1000]
    assert seen["interfaces"] == ["lo"]
    assert seen["loopback"] == "Connection refused"
    assert seen["host"] == "nsm"

    assert seen["project"] == "1\n2\n39\n"
    written = seen["written"]
    assert {path for path, told in written.items() if told == 1} == {
        "/workspace/new",
        "/tmp/new",
        "/dev/shm/new",
    }
    assert written["/project/new"] == "Read-only file system"
