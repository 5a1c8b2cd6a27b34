"""Records of kept descriptors, in sealed memory files that are kept beside them.

A record is `nsm-record VERSION SHA256\\n` and JSON. It is written once, whole, before it is handed
over, so that it cannot be torn; the checksum is for whoever hands us something else. What changes
in a session's life gets a record with a higher revision beside the old one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import TypeVar

from nsmd.fdstore.codec import CodecError, from_plain, to_plain
from nsmd.model.policy import Policy
from nsmd.model.values import JailSpec, NetworkRule, Tenancy

VERSION = 1
"""Another one is not understood by what is older. Further fields are no reason for it."""

MAX_RECORD_BYTES = 16 * 1024 * 1024

_MAGIC = b"nsm-record "
_SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL

R = TypeVar("R")


class RecordError(Exception):
    """A record cannot be read; the message says why, for people."""


class NewerRecordError(RecordError):
    """A newer nsm has written it. What it is about is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecRecord:
    """Facts that sessions of one kind share.

    Attributes:
        policy: of their jails.
    """

    spec: JailSpec
    policy: Policy | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecord:
    """One session that belongs to somebody.

    Attributes:
        revision: the highest of a session's records holds.
        spec: name under which a `SpecRecord` is kept.
        token: by which the agent knows a new holder of its channel; 32 hex digits.
        capabilities: of the agent.
        pid: of the jail's PID 1 on the host, in the PID namespace of the writer.
        starter: process id of what made the jail, a child of the supervisor; 0 for none.
        channel, listener, changed, shown: identities (`identity`) of its descriptors; None where it
            has none.
        network: what it may reach now.
        group: directory of its control group; None without.
        created_s: on the system's monotonic clock.
        boot: id of the boot in which that clock runs.
        executions: how many it had.
        taken_up: how often a new supervisor has taken it up.
        applied: of its project's copy, as in `ProjectCopy`.
        template, outdated: as `template_pid` and `outdated` of `Jail`.
    """

    id: str
    revision: int
    spec: str
    tenancy: Tenancy
    token: str
    capabilities: tuple[str, ...]
    pid: int
    starter: int = 0
    channel: str
    listener: str | None = None
    changed: str | None = None
    shown: str | None = None
    network: NetworkRule
    group: str | None = None
    created_s: float
    boot: str = ""
    executions: int = 0
    taken_up: int = 0
    applied: dict[str, int] = field(default_factory=dict[str, int])
    template: int = 0
    outdated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRecord:
    """How a session ended; `at_s` and `boot` as `created_s` and `boot` of a `SessionRecord`."""

    scope: str
    name: str
    reason: str
    at_s: float
    boot: str = ""
    lost: bool = False


def identity(descriptor: int) -> str:
    """Return a key that tells a socket or directory from all others that are open now.

    Raises:
        OSError: it is not open.
    """
    status = os.fstat(descriptor)
    return f"{status.st_dev:x}:{status.st_ino:x}"


def spec_name(data: bytes) -> str:
    """The name under which a `SpecRecord` is kept."""
    return f"spec-{hashlib.sha256(data).hexdigest()[:24]}"


def encode(record: object) -> bytes:
    """A record as it is kept.

    Raises:
        TypeError: it holds what has no plain form.
    """
    body = json.dumps(to_plain(record), separators=(",", ":"), ensure_ascii=True).encode()
    return b"%s%d %s\n%s" % (_MAGIC, VERSION, hashlib.sha256(body).hexdigest().encode(), body)


def decode(kind: type[R], data: bytes) -> R:
    """The record in what was kept.

    Raises:
        NewerRecordError: a newer nsm has written it.
        RecordError: it is damaged, or something else.
    """
    head, separator, body = data.partition(b"\n")
    fields = head.split(b" ")
    if not data.startswith(_MAGIC) or not separator or len(fields) != 3:
        raise RecordError("it does not begin as a record does")
    if not fields[1].isdigit() or len(fields[1]) > 9:
        raise RecordError("its version is no number")
    if int(fields[1]) > VERSION:
        raise NewerRecordError(
            f"it has version {int(fields[1])}, and this nsm understands up to {VERSION}"
        )
    if hashlib.sha256(body).hexdigest().encode() != fields[2]:
        raise RecordError("it is damaged: its checksum is another")
    try:
        return from_plain(kind, json.loads(body), "the record")
    except (CodecError, ValueError, RecursionError) as error:
        raise RecordError(str(error)) from error


def memory_file(data: bytes) -> int:
    """A sealed descriptor with that content; the caller closes it.

    Raises:
        OSError: there can be none.
    """
    descriptor = os.memfd_create("nsm-record", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(descriptor, data)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_file(descriptor: int) -> bytes | None:
    """The content of a kept memory file; None where it is something else."""
    try:
        if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) < 0:
            return None
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, min(size, MAX_RECORD_BYTES), 0)
    except OSError:
        return None
