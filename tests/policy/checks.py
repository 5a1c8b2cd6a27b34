"""Compares a policy with what code has found in its jail (`look.py`)."""

from __future__ import annotations

from pathlib import Path
from posixpath import dirname
from typing import TYPE_CHECKING, Any

import pytest

from nsmd.host.paths import is_within

if TYPE_CHECKING:
    from collections.abc import Mapping

LOOK = Path(__file__).with_name("look.py").read_text()
"""Prints what it finds, as JSON."""

Found = dict[str, Any]
"""The policy that code has read, or what else it says."""


def check_file(found: Found) -> None:
    """Nobody changes it."""
    assert found["still the same"] is True
    refused = found["tampering"]
    assert "done" not in refused.values(), refused
    # It is its own file: nothing but the read-only mount is in the way.
    assert refused["chmod"] == "Read-only file system"


def check_mounts(policy: Found, found: Found) -> None:
    """Each that is promised is there, with its mode and room; each that is there is promised."""
    mounts: dict[str, list[str]] = found["mounts"]
    promised = {mount["path"]: mount for mount in policy["mounts"]}
    for path, mount in promised.items():
        _check_mount(path, mount, found)
    for path, (kind, mode) in mounts.items():
        if path not in promised:
            inside = max((p for p in promised if is_within(path, p)), key=len)
            _check_below(path, kind, mode, promised[inside], policy["devices"])
    made = {path for path, mount in promised.items() if mount["kind"] == "file"}
    assert set(found["own files"]) <= made


FILE_SYSTEMS = {"tmpfs": "tmpfs", "overlay": "overlay", "proc": "proc", "dev": "tmpfs"}


def _check_mount(path: str, mount: Mapping[str, Any], found: Found) -> None:
    kind, mode = mount["kind"], mount["mode"]
    if kind == "file":
        assert found["files"][path] != "done", path
        return
    if kind == "binds" and path != "/":
        shown = [each for each in found["mounts"] if dirname(each) == path]
        assert len(shown) == mount["entries"]
        return
    file_system, real_mode = found["mounts"][path]
    assert real_mode == ("ro" if mode == "ro" else "rw"), path
    assert FILE_SYSTEMS.get(kind, file_system) == file_system, path
    if kind not in ("proc", "dev") and path in found["directories"]:
        done = found["directories"][path] == "done"
        assert done == (mode != "ro"), (path, found["directories"][path])
    size_mb, inodes = found["room"][path]
    if "size_mb" in mount:
        assert size_mb == mount["size_mb"], path
        if "inodes" in mount:
            assert inodes == mount["inodes"], path
        else:
            assert inodes > mount["size_mb"] * 1024, f"{path} has a bound that is not told"
    else:
        assert mode == "ro" or kind == "proc", f"{path} can be written to without bound"


def _check_below(
    path: str, kind: str, mode: str, promised: Mapping[str, Any], devices: list[str]
) -> None:
    match promised["kind"]:
        case "dev":
            assert kind in ("devtmpfs", "devpts", "tmpfs"), path
            assert kind != "tmpfs" or mode == "ro" or path in devices, path
        case "proc":
            assert kind in ("proc", "devtmpfs", "tmpfs"), path
            assert mode == "ro" or kind == "devtmpfs", path
        case "bind" | "binds":
            assert mode == "ro", path
        case other:
            pytest.fail(f"{path} ({kind}) is mounted in {promised['path']} ({other})")


def check_devices(policy: Found, found: Found) -> None:
    assert found["devices"] == policy["devices"]


def check_limits(policy: Found, found: Found) -> None:
    """Check the limits of each process."""
    limits, real = policy["limits"], found["limits"]
    assert real["data"] == [limits["process_memory_mb"] << 20] * 2
    assert real["descriptors"] == [limits["descriptors"]] * 2
    assert max(real["core"]) <= 1  # of a byte, to be none for crash programs either
    if limits["processes_by"] == "rlimit":
        assert real["processes"] == [limits["processes"]] * 2


def check_rights(policy: Found, found: Found) -> None:
    rights = policy["rights"]
    assert found["user"] == [rights["uid"]] * 2 + [rights["gid"]] * 2
    assert rights["capabilities"] == []
    assert found["capabilities"] == [0] * 5
    assert (found["no_new_privs"] == 1) is rights["no_new_privs"] is True
    assert (found["filter"] == 2) is rights["system_call_filter"] is True
    assert ("done" in found["namespaces"]) is rights["nested_namespaces"] is False
