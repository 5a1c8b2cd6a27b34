"""Agreements and answers of a person: `boxes.json` in the state directory, which no box sees.

One agreement to boxes for each directory, profile and program, and one answer to each question
about a directory: the last. What runs in a box gives it nothing more, so that the same box is
agreed to for other programs as well; nor do files of nsm's own, or programs of the system that are
hidden, both of which come and go with upgrades. A file that cannot be read holds nothing, so that
they are asked again; one that cannot be written is told.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast

from nsm import paths
from nsm.dataclass import dataclass, replace
from nsm.paths import replace_file
from nsmbox.consent.summary import only_guards_more
from nsmbox.model.plan import RUN_DIRECTORY, Mount, Network, Plan, Variable

MAX_AGREEMENTS = 64
"""The oldest are forgotten first. With a few kilobytes each, reading them takes milliseconds."""

MAX_ANSWERS = 256
"""The oldest are forgotten first."""

MAX_IDENTITY_BYTES = 32 * 1024
"""Largest plan to keep; for a larger one only the digest is kept, so that nsm cannot show what
changed.
"""

MAX_FILE_BYTES = 4 * 1024 * 1024

_NEVER_SHOWN = "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Agreement of a person to a box.

    Attributes:
        at: when, in seconds since 1970.
        identity: the plan's; None where it was too large.
    """

    digest: str
    key: tuple[str, str, str]
    at: int
    identity: dict[str, Any] | None

    def plan(self) -> Plan | None:
        """The plan, as far as it is known: no values, contents and arguments."""
        if self.identity is None:
            return None
        try:
            return _plan(self.identity)
        except (KeyError, TypeError, ValueError, IndexError):
            return None  # of another version of nsm

    @property
    def day(self) -> str:
        """The day, here."""
        return time.strftime("%Y-%m-%d", time.localtime(self.at))


_Answers = dict[tuple[str, str], bool]
"""Answers by directory and question."""


def path() -> str:
    """Path of the file."""
    return os.path.join(paths.state_dir(), "boxes.json")


def find(plan: Plan) -> Agreement | None:
    """The one for this plan; else the last for the same directory and profile, of the same program
    if there is one."""
    digest, key = digest_of(plan), _key(plan)
    found, _ = _read()
    found.sort(key=lambda each: (each.digest == digest, each.key == key))  # keeps their order
    return next((each for each in reversed(found) if each.key[:2] == key[:2]), None)


def covers(agreement: Agreement, plan: Plan) -> bool:
    """Return whether a person agreed to this plan: to the same, or to one that differs only by
    hiding and protecting less."""
    if agreement.digest == digest_of(plan):
        return True
    before = agreement.plan()
    return before is not None and only_guards_more(before, essence(plan))


def remember(plan: Plan) -> None:
    """Keep that somebody has agreed to this plan, in place of what they agreed to before."""
    identity: dict[str, Any] | None = essence(plan).identity
    if len(json.dumps(identity)) > MAX_IDENTITY_BYTES:
        identity = None
    new = Agreement(digest=digest_of(plan), key=_key(plan), at=int(time.time()), identity=identity)
    with _locked():
        found, answers = _read()
        _write([*(each for each in found if each.key != new.key), new], answers)


def answer_to(directory: str, question: str) -> bool | None:
    """The answer that was given to a question about a directory; None if there is none."""
    return _read()[1].get((directory, question))


def remember_answer(directory: str, question: str, *, yes: bool) -> None:
    """Keep an answer in place of an earlier one."""
    with _locked():
        found, answers = _read()
        answers.pop((directory, question), None)
        _write(found, {**answers, (directory, question): yes})


def digest_of(plan: Plan) -> str:
    """Tell plans apart that a person would want to be asked about."""
    told = {name: value for name, value in essence(plan).identity.items() if name != "program"}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def essence(plan: Plan) -> Plan:
    """The plan without what nobody is asked about."""
    kept = [
        mount
        for mount in plan.mounts
        if not mount.target.startswith(f"{RUN_DIRECTORY}/")
        and not (mount.kind == "mask" and mount.target.startswith("/usr/"))
    ]
    return replace(plan, mounts=tuple(kept))


def _key(plan: Plan) -> tuple[str, str, str]:
    return plan.directory, plan.profile, plan.asked[0]


@contextmanager
def _locked() -> Generator[None]:
    """Let one box at a time change the file."""
    paths.ensure_private_dir(paths.state_dir())
    directory = os.open(paths.state_dir(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


def _read() -> tuple[list[Agreement], _Answers]:
    try:
        content = json.loads(_own_content() or b"{}")
        return (
            [_agreement(row) for row in content.get("agreements", ())],
            {
                (str(directory), str(question)): yes is True
                for directory, question, yes in content.get("answers", ())
            },
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return [], {}


def _own_content() -> bytes | None:
    """The content of the file; None if it is none that nobody else could have written."""
    try:
        descriptor = os.open(path(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            ours_alone = status.st_uid == os.geteuid() and not status.st_mode & 0o022
            if not stat.S_ISREG(status.st_mode) or not ours_alone:
                return None
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError:
        return None
    return data if len(data) <= MAX_FILE_BYTES else None


def _agreement(row: dict[str, Any]) -> Agreement:
    directory, profile, program = row["key"]
    identity: object = row["identity"]
    return Agreement(
        digest=str(row["digest"]),
        key=(str(directory), str(profile), str(program)),
        at=int(row["at"]),
        identity=cast("dict[str, Any]", identity) if isinstance(identity, dict) else None,
    )


def _write(agreements: list[Agreement], answers: _Answers) -> None:
    rows = [
        {"digest": each.digest, "key": each.key, "at": each.at, "identity": each.identity}
        for each in agreements[-MAX_AGREEMENTS:]
    ]
    answered = [[*key, yes] for key, yes in answers.items()][-MAX_ANSWERS:]
    content = {"version": 1, "agreements": rows, "answers": answered}
    replace_file(path(), json.dumps(content).encode())


def _plan(identity: dict[str, Any]) -> Plan:
    mode, *allow = identity["network"]
    if mode not in ("host", "none", "allow"):
        raise ValueError(mode)
    return Plan(
        profile=str(identity["profile"]),
        mounts=tuple(
            Mount(kind=kind, target=str(target), source=str(source), mode=int(bits))
            for kind, target, source, bits in identity["mounts"]
        ),
        variables=tuple(Variable(name=str(n), value=_NEVER_SHOWN) for n in identity["variables"]),
        network=Network(mode=mode, allow=tuple(map(str, allow))),
        command=(str(identity["program"]),),
        directory=str(identity["directory"]),
        sockets=bool(identity["sockets"]),
        programs=tuple(map(str, identity.get("programs", ()))),
        secrets=tuple(map(str, identity.get("secrets", ()))),
    )
