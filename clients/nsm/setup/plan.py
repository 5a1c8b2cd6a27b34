"""Files as they are and as they should be, and back."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from nsm.dataclass import dataclass, field
from nsm.setup import files, record
from nsm.setup.agents import NAME, PROGRAM, program_of
from nsm.setup.document import Document
from nsm.setup.files import SettingsFileError
from nsm.setup.record import ChangedFile, Did, Edit

if TYPE_CHECKING:
    from nsm.setup.agents import CodingAgent, Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChange:
    """A file before and after; None where there is none."""

    path: str
    before: bytes | None
    after: bytes | None


@dataclass(slots=True, kw_only=True)
class SetupPlan:
    """Changes of an agent's files.

    Attributes:
        agent: the agent.
        changes: in order.
        notes: for people: what is left as it is, and why.
        kept: the record, once all is done.
    """

    agent: CodingAgent
    changes: list[SettingsChange] = field(default_factory=list[SettingsChange])
    notes: list[str] = field(default_factory=list[str])
    kept: dict[str, ChangedFile]

    def change(self, path: str, before: bytes | None, after: bytes | None) -> None:
        """Plan a change of a file.

        Raises:
            SettingsFileError: the file is read-only.
        """
        files.check_writable(path)
        self.changes.append(SettingsChange(path=path, before=before, after=after))


def plan_setup(agent: CodingAgent) -> SetupPlan:
    """Plan what makes an agent's files hold all that is wanted.

    Raises:
        SettingsFileError: a file can't be changed safely.
    """
    kept = record.load(agent.name)
    plan = SetupPlan(agent=agent, kept=dict(kept))
    for path in dict.fromkeys(wanted.path for wanted in agent.wanted):
        before = files.read(path)
        here = [wanted for wanted in agent.wanted if wanted.path == path]
        if here[0].kind == "file":
            _plan_whole(plan, here[0], before)
            continue
        document = Document(path, before or b"")
        edits = [edit for each in here if (edit := _edited(plan, document, each)) is not None]
        if not edits:
            continue
        after = document.text().encode()
        plan.change(path, before, after)
        plan.kept[path] = _merged(kept.get(path), path, before, after, edits)
    return plan


def plan_undo(agent: CodingAgent) -> SetupPlan:
    """Plan what takes back all that was changed for an agent.

    Raises:
        SettingsFileError: a file can't be changed safely, or the record is damaged.
    """
    plan = SetupPlan(agent=agent, kept={})
    known = record.load(agent.name)
    if not known:
        _plan_unrecorded(plan)
    for path, changed in known.items():
        before = files.read(path)
        if before is None:
            continue
        if changed.edits[0].did == "file":
            owners = record.of_others(agent.name, path)
            if owners:
                plan.notes.append(f"{path} stays for {', '.join(owners)}")
            elif _digest(before) != changed.digest:
                plan.notes.append(f"{path} stays: somebody has changed it")
            else:
                plan.change(path, before, None)
            continue
        after = _taken_back(changed, before)
        if after != before:
            plan.change(path, before, after)
    return plan


def _plan_unrecorded(plan: SetupPlan) -> None:
    """Plan what takes out exactly what nsm would write, where no record tells what it has written.

    Nobody knows what was there before: a file stays, with what else is in it.
    """
    for path in dict.fromkeys(wanted.path for wanted in plan.agent.wanted):
        before = files.read(path)
        if before is None:
            continue
        here = [wanted for wanted in plan.agent.wanted if wanted.path == path]
        if here[0].kind == "file":
            owners = record.of_others(plan.agent.name, path)
            if not owners and before == here[0].value.encode():
                plan.change(path, before, None)
            else:
                why = f"for {', '.join(owners)}" if owners else "as this nsm writes another text"
                plan.notes.append(f"{path} stays, {why}")
            continue
        document = Document(path, before)
        for wanted in reversed(here):
            keys = [*wanted.keys]
            # Tables that nsm is named by go with it; those around them may be somebody else's, but
            # in TOML there are none without something in them.
            made = next((place for place, key in enumerate(keys) if NAME in key), len(keys))
            made = 0 if path.endswith(".toml") else made
            did: Did = "item" if wanted.kind == "item" else "set"
            document.take_back(Edit(did=did, keys=keys, value=wanted.value, made=made))
        after = document.text().encode()
        if after != before:
            plan.change(path, before, after)


def apply(plan: SetupPlan) -> None:
    """Write what was planned: all of it or, if a file can't be written, nothing.

    Raises:
        SettingsFileError: a file has changed since.
        OSError: a file can't be written.
    """
    before = record.load(plan.agent.name)
    record.save(plan.agent.name, before | plan.kept)
    done: list[SettingsChange] = []
    made: list[str] = []
    try:
        for change in plan.changes:
            directories = files.replace(change.path, change.after, change.before)
            made += directories
            done.append(change)
            if directories and change.path in plan.kept:
                plan.kept[change.path].directories = directories
    except BaseException:
        for change in reversed(done):
            files.replace(change.path, change.before, change.after)
        files.remove_empty(made)
        record.save(plan.agent.name, before)
        raise
    if not plan.kept:
        made_then = {each for changed in before.values() for each in changed.directories}
        files.remove_empty(sorted(made_then, key=len))
    record.save(plan.agent.name, plan.kept)


def _edited(plan: SetupPlan, document: Document, wanted: Wanted) -> Edit | None:
    """Change the document so that it holds something; None where it does already."""
    keys = [*wanted.keys]
    if wanted.kind == "entry":
        return _edited_entry(plan, document, wanted, keys)
    try:
        made = document.depth(keys)
        present = document.get(keys)
        if wanted.kind == "item":
            if isinstance(present, list) and wanted.value in present:
                return None
            document.append(keys, wanted.value)
            return Edit(did="item", keys=keys, value=wanted.value, made=made)
        if made == len(keys):
            if present != wanted.value:
                plan.notes.append(f"{wanted.path}: {'.'.join(keys)} stays {present!r}")
            return None
        document.set(keys, wanted.value)
    except SettingsFileError as error:
        plan.notes.append(f"{error.message}; `run` is not allowed there in advance")
        return None
    return Edit(did="set", keys=keys, value=wanted.value, made=made)


def _edited_entry(
    plan: SetupPlan, document: Document, wanted: Wanted, keys: list[str]
) -> Edit | None:
    present = document.get(keys)
    if present is None:
        made = document.depth(keys)
        document.set(keys, wanted.value)
        return Edit(did="set", keys=keys, value=wanted.value, made=min(made, len(keys) - 1))
    program = program_of(present)
    if program == program_of(wanted.value):
        return None
    if program.rpartition("/")[2] != PROGRAM:
        raise SettingsFileError(
            f"{wanted.path} has another server called {NAME!r}, which starts "
            f"{program or 'no program'}",
            hint="Rename or remove it, and run the command again. Nothing was changed.",
        )
    keys = [*keys, "command"]
    old, new = document.get(keys), wanted.value["command"]
    document.set(keys, new)
    plan.notes.append(f"{wanted.path}: the entry started {program}")
    return Edit(did="set", keys=keys, value=new, old=old, made=len(keys))


def _plan_whole(plan: SetupPlan, wanted: Wanted, before: bytes | None) -> None:
    after = wanted.value.encode()
    known = plan.kept.get(wanted.path)
    others = record.of_others(plan.agent.name, wanted.path)
    as_written = [*others.values(), *([known] if known else [])]
    if before == after:
        if not as_written:  # a copy that somebody has made by hand
            return
    elif before is not None and _digest(before) not in [each.digest for each in as_written]:
        plan.notes.append(f"{wanted.path} stays: somebody has changed it")
        return
    else:
        plan.change(wanted.path, before, after)
    plan.kept[wanted.path] = ChangedFile(
        path=wanted.path,
        created=True,
        digest=_digest(after),
        splice=None,
        edits=[Edit(did="file", keys=[], value=None)],
        directories=next(
            (each.directories for each in as_written if each.directories), list[str]()
        ),
    )


def _merged(
    known: ChangedFile | None, path: str, before: bytes | None, after: bytes, edits: list[Edit]
) -> ChangedFile:
    """The record of a file that may have been changed by nsm earlier."""
    splice: list[Any] | None
    if known is None:
        splice = splice_of((before or b"").decode(), after.decode())
    elif before is not None and _digest(before) == known.digest and known.splice is not None:
        splice = splice_of(_unspliced(before.decode(), known.splice), after.decode())
    else:
        splice = None
    earlier = known.edits if known is not None else []
    changed = [edit.keys for edit in edits]
    return ChangedFile(
        path=path,
        created=known.created if known is not None else before is None,
        digest=_digest(after),
        splice=splice,
        edits=[*(edit for edit in earlier if edit.keys not in changed), *edits],
        directories=known.directories if known is not None else [],
    )


def _taken_back(changed: ChangedFile, before: bytes) -> bytes | None:
    """The content without the changes; None where the file goes."""
    if _digest(before) == changed.digest and changed.splice is not None:
        return None if changed.created else _unspliced(before.decode(), changed.splice).encode()
    document = Document(changed.path, before)
    for edit in reversed(changed.edits):
        document.take_back(edit)
    if changed.created and document.is_empty():
        return None
    # Others have changed the file elsewhere: what stood around our changes comes back as it was.
    if changed.splice is not None and changed.splice[2]:
        whole = before.decode()
        exact = whole.replace(changed.splice[2], changed.splice[1])
        if whole.count(changed.splice[2]) == 1 and document.is_meant_by(exact):
            return exact.encode()
    return document.text().encode()


def splice_of(before: str, after: str) -> list[Any]:
    """Difference of two texts: place, what was there, what is there."""
    start = 0
    shorter = min(len(before), len(after))
    while start < shorter and before[start] == after[start]:
        start += 1
    end = 0
    while end < shorter - start and before[-1 - end] == after[-1 - end]:
        end += 1
    return [start, before[start : len(before) - end], after[start : len(after) - end]]


def _unspliced(text: str, splice: list[Any]) -> str:
    start: int = splice[0]
    removed: str = splice[1]
    inserted: str = splice[2]
    return text[:start] + removed + text[start + len(inserted) :]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
