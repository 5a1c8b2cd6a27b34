"""Entries of the store that this version cannot read."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import TYPE_CHECKING

from nsmd.fdstore.holder import memory_file
from nsmd.fdstore.left_alone import LeftAlone
from nsmd.fdstore.store import NoStore
from nsmd.fdstore.systemd_store import SystemdStore

if TYPE_CHECKING:
    from pathlib import Path


def test_kinds_that_only_a_newer_version_knows_are_left_alone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        kept = {"paint-1": [ours.fileno()], "session-a": [theirs.fileno()]}
        left_alone = LeftAlone(NoStore(), kept)
        assert list(left_alone.everything_kept()) == [("paint-1", (ours.fileno(),))]
        assert "1 x other thing" in left_alone.problem
    assert not LeftAlone(NoStore()).problem


def test_what_belongs_to_a_session_goes_with_it_from_systemds_store(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    kept = {"session-a.held": [ours.detach()], "session-a.1": [memory_file(b"nsm-record x")]}
    with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        with closing(SystemdStore(str(tmp_path / "notify"), kept=kept)) as store:
            left_alone = LeftAlone(store)
            for name, descriptors in kept.items():
                left_alone.add(name, descriptors, "why", owner="a")
            assert left_alone.has("a")
            left_alone.drop("a")
            told = [systemd.recv(100).splitlines()[1] for _ in kept]
            assert told == [b"FDNAME=session-a.1", b"FDNAME=session-a.held"]
        assert theirs.recv(1) == b""
    assert (left_alone.has("a"), left_alone.problem) == (False, "")
