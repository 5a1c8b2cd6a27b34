"""Records of what is kept: written and read, cut, damaged, of other versions."""

from __future__ import annotations

import os
import socket
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from nsm.wire.decode import decode
from nsmd.fdstore import records
from nsmd.fdstore.holder import memory_file
from nsmd.fdstore.records import (
    KeptEntries,
    NewerRecordError,
    RecordError,
    SessionRecord,
    SpecRecord,
    to_plain,
)
from nsmd.fdstore.store import NoStore
from nsmd.fdstore.systemd_store import SystemdStore
from nsmd.model.policy import policy_of
from nsmd.model.values import (
    Artifact,
    Environment,
    JailSizes,
    JailSpec,
    NetworkRule,
    ProjectMount,
    ReadOnlyBind,
    SessionLimits,
    SetupStep,
    Sources,
    Tenancy,
)

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT = Environment(
    name="python",
    interpreter="python",
    program="/usr/bin/python3",
    binds=(ReadOnlyBind(source="/opt/a", target="/opt/b"),),
    timeout_s=12.5,
    preload=("json",),
    variables=(("A", "1"), ("B", "\udc80")),
    setup=(SetupStep(name="shell", code="x = 1"),),
    artifact=Artifact(run="/nix/run", session_run="/nix/session", takes=frozenset({"b", "a"})),
    network=NetworkRule(mode="allow", allow=("example.org",)),
)
PROJECT = ProjectMount(path="/p", mount_point="/project", device=3, inode=4, mode="overlay")
SPEC = JailSpec(environment=ENVIRONMENT, project=PROJECT, sizes=JailSizes(tmp_mb=7))
RECORD = SessionRecord(
    id="0123abcd",
    revision=3,
    spec="spec-1",
    tenancy=Tenancy(
        name="work",
        scope="cli",
        client="nsm",
        idle_timeout_s=60,
        max_lifetime_s=3600.5,
        own=Sources(directory="/d", flakes=("nixpkgs#hello",)),
        labels=(("job", "7"), ("owner", "me")),
    ),
    token="00" * 16,
    capabilities=("notes", "sequence"),
    pid=77,
    channel="8:1f",
    listener="8:20",
    network=NetworkRule(mode="allow", allow=("example.org", "*.example.com:443")),
    created_s=1.25,
    applied={"a/b": 10**18},
)


def test_a_record_is_read_as_it_was_written() -> None:
    policy = policy_of(SPEC, SessionLimits(), "forked")
    kept = SpecRecord(spec=SPEC, policy=policy)
    assert records.decode(SpecRecord, records.encode(kept)) == kept
    assert records.decode(SessionRecord, records.encode(RECORD)) == RECORD
    assert records.spec_name(records.encode(kept)) == records.spec_name(records.encode(kept))


def test_a_record_that_was_cut_anywhere_is_refused() -> None:
    data = records.encode(RECORD)
    for length in range(len(data)):
        with pytest.raises(RecordError) as caught:
            records.decode(SessionRecord, data[:length])
        assert not isinstance(caught.value, NewerRecordError)


def test_a_record_with_a_byte_changed_is_refused() -> None:
    data = records.encode(RECORD)
    version = data.index(b" ") + 1
    for place in range(len(data)):
        if place == version:
            continue  # a version of its own
        damaged = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(RecordError):
            records.decode(SessionRecord, damaged)


@pytest.mark.parametrize("version", [2, 10, 999])
def test_a_newer_record_is_told_from_a_damaged_one(version: int) -> None:
    head, _, body = records.encode(RECORD).partition(b"\n")
    magic, _, checksum = head.split(b" ")
    newer = b"%s %d %s\n%s" % (magic, version, checksum, body + b"something else")
    with pytest.raises(NewerRecordError, match=f"version {version}, and this nsm understands"):
        records.decode(SessionRecord, newer)


def test_fields_that_only_a_newer_nsm_knows_are_passed_over() -> None:
    plain = to_plain(RECORD) | {"colour": "red"}
    plain["tenancy"]["colour"] = {"deep": [1]}
    assert decode(SessionRecord, plain) == RECORD


def test_other_descriptors_are_no_records() -> None:
    read_end, write_end = os.pipe()
    try:
        assert records.read_file(read_end) is None
    finally:
        os.close(read_end)
        os.close(write_end)
    assert records.read_file(10**6) is None


def test_kinds_that_only_a_newer_version_knows_are_left_alone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        kept = {"paint-1": [ours.fileno()], "session-a": [theirs.fileno()]}
        entries = KeptEntries(NoStore(), kept)
        assert list(entries.everything_kept()) == [("paint-1", (ours.fileno(),))]
        assert "1 x other thing" in entries.problem
    assert not KeptEntries(NoStore()).problem


def test_systemd_drops_all_of_a_session_together(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    kept = {"session-a.held": [ours.detach()], "session-a.1": [memory_file(b"nsm-record x")]}
    with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        with closing(SystemdStore(str(tmp_path / "notify"), kept=kept)) as store:
            entries = KeptEntries(store)
            for name, descriptors in kept.items():
                entries.leave(name, descriptors, "why", owner="a")
            assert entries.has("a")
            entries.drop("a")
            told = [systemd.recv(100).splitlines()[1] for _ in kept]
            assert told == [b"FDNAME=session-a.1", b"FDNAME=session-a.held"]
        assert theirs.recv(1) == b""
    assert (entries.has("a"), entries.problem) == (False, "")
