"""Files as they are and as they should be, and back."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING

from nsm.dataclass import dataclass, field
from nsm.setup import record, settings_file
from nsm.setup.agents import NAME, PROGRAM, program_of
from nsm.setup.record import ChangedFile, Splice
from nsm.setup.settings_file import Document, SettingsFileError

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
        notes: for people: what is left as it is, and why.
        left: for people: what they have to take out by hand.
        kept: the record, once all is done.
    """

    agent: CodingAgent
    changes: list[SettingsChange] = field(default_factory=list[SettingsChange])
    notes: list[str] = field(default_factory=list[str])
    left: list[str] = field(default_factory=list[str])
    kept: dict[str, ChangedFile]

    def change(self, path: str, before: bytes | None, after: bytes | None) -> None:
        """Plan a change of a file, which must not be read-only."""
        settings_file.check_writable(path)
        self.changes.append(SettingsChange(path=path, before=before, after=after))


def plan_setup(agent: CodingAgent) -> SetupPlan:
    """Plan what makes an agent's files hold all that is wanted.

    Raises:
        SettingsFileError: a file can't be changed safely.
    """
    plan = SetupPlan(agent=agent, kept=record.load(agent.name))
    for path in dict.fromkeys(wanted.path for wanted in agent.wanted):
        before = settings_file.read(path)
        here = [wanted for wanted in agent.wanted if wanted.path == path]
        if here[0].kind == "file":
            _plan_own(plan, here[0], before)
            continue
        document = Document(path, before or b"")
        splices: list[Splice] = []
        for wanted in here:
            text = document.text
            _edit(plan, document, wanted)
            if text != document.text:
                splices.append(splice_of(text, document.text))
        if not splices:
            continue
        after = document.checked_text().encode()
        plan.change(path, before, after)
        known = plan.kept.get(path) or ChangedFile(path, before is None, "", (), ())
        earlier = known.splices
        if before is None or _digest(before) != known.digest:
            earlier = tuple(each._replace(start=None) for each in earlier)
        plan.kept[path] = known._replace(digest=_digest(after), splices=(*earlier, *splices))
    return plan


def plan_undo(agent: CodingAgent) -> SetupPlan:
    """Plan what takes back all that was changed for an agent.

    Raises:
        SettingsFileError: a file can't be changed safely, or the record is damaged.
    """
    plan = SetupPlan(agent=agent, kept={})
    known = record.load(agent.name)
    for path in dict.fromkeys([*known, *(wanted.path for wanted in agent.wanted)]):
        before = settings_file.read(path)
        if before is None:
            continue
        changed = known.get(path)
        here = [wanted for wanted in agent.wanted if wanted.path == path]
        if not changed.splices if changed else here[0].kind == "file":
            ours = changed.digest if changed else _digest(here[0].value.encode())
            if owners := record.of_others(agent.name, path):
                plan.notes.append(f"{path} stays for {', '.join(owners)}")
            elif _digest(before) != ours:
                plan.notes.append(f"{path} stays: somebody has changed it")
            else:
                plan.change(path, before, None)
            continue
        after = _undone(changed, before, here) if changed else None
        if changed and after is not None:
            plan.change(path, before, after.encode() if after or not changed.created else None)
            continue
        held = [".".join(wanted.keys) for wanted in here if _holds(path, before, wanted)]
        if held or not here:  # another XDG_CONFIG_HOME than then
            what = " and ".join(held) or f"what starts {PROGRAM}"
            why = "has changed since" if changed else "is in no record of nsm's"
            plan.left.append(f"{path} {why}, and was left: take out {what} by hand")
            if changed:
                plan.kept[path] = changed
    return plan


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
            directories = settings_file.replace(change.path, change.after, change.before)
            made += directories
            done.append(change)
            if directories and (kept := plan.kept.get(change.path)):
                plan.kept[change.path] = kept._replace(directories=tuple(directories))
    except BaseException:
        for change in reversed(done):
            settings_file.replace(change.path, change.before, change.after)
        settings_file.remove_empty(made)
        record.save(plan.agent.name, before)
        raise
    if not plan.kept:
        made_then = {each for changed in before.values() for each in changed.directories}
        settings_file.remove_empty(sorted(made_then, key=len))
    record.save(plan.agent.name, plan.kept)


def _edit(plan: SetupPlan, document: Document, wanted: Wanted) -> None:
    """Change the document so that it holds something."""
    present = document.get(wanted.keys)
    if wanted.kind == "entry":
        if present is not None:
            _edit_entry(plan, document, wanted)
        else:
            document.set(wanted.keys, wanted.value)
        return
    try:
        if wanted.kind == "item":
            if not isinstance(present, list) or wanted.value not in present:
                document.append(wanted.keys, wanted.value)
        elif document.has_room(wanted.keys):
            document.set(wanted.keys, wanted.value)
        elif present != wanted.value:
            plan.notes.append(f"{wanted.path}: {'.'.join(wanted.keys)} stays {present!r}")
    except SettingsFileError as error:
        plan.notes.append(f"{error.message}; `run` is not allowed there in advance")


def _edit_entry(plan: SetupPlan, document: Document, wanted: Wanted) -> None:
    """Have the entry that is there start this installation's program."""
    program = program_of(document.get(wanted.keys))
    if program == program_of(wanted.value):
        return
    if program.rpartition("/")[2] != PROGRAM:
        raise SettingsFileError(
            f"{wanted.path} has another server called {NAME!r}, which starts "
            f"{program or 'no program'}",
            hint="Rename or remove it, and run the command again. Nothing was changed.",
        )
    document.set((*wanted.keys, "command"), wanted.value["command"])
    plan.notes.append(f"{wanted.path}: the entry started {program}")


def _plan_own(plan: SetupPlan, wanted: Wanted, before: bytes | None) -> None:
    """Plan a file that is nsm's alone."""
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
    directories = next((each.directories for each in as_written if each.directories), ())
    plan.kept[wanted.path] = ChangedFile(wanted.path, True, _digest(after), (), directories)


def _undone(changed: ChangedFile, before: bytes, here: list[Wanted]) -> str | None:
    """The text without the changes; None where others have changed these, too.

    In a file that others have changed elsewhere, each change is taken back where its text stands
    once, if the file then means what it did without nsm: lines that somebody has added below a
    table of nsm's in TOML would go to the table above.
    """
    text = before.decode(errors="replace")
    is_as_written = _digest(before) == changed.digest
    for known_start, removed, inserted in reversed(changed.splices):
        is_as_written = is_as_written and known_start is not None
        if not is_as_written and text.count(inserted) != 1:
            return None
        start = known_start if is_as_written and known_start is not None else text.index(inserted)
        text = text[:start] + removed + text[start + len(inserted) :]
    if is_as_written:
        return text
    with suppress(SettingsFileError):
        documents = Document(changed.path, before), Document(changed.path, text.encode())
        now, then = (document.without(here) for document in documents)
        return text if now == then else None
    return None


def _holds(path: str, content: bytes, wanted: Wanted) -> bool:
    present = Document(path, content).get(wanted.keys)
    match wanted.kind:
        case "entry":
            return program_of(present).rpartition("/")[2] == PROGRAM
        case "item":
            return isinstance(present, list) and wanted.value in present
        case _:
            return bool(present == wanted.value)


def splice_of(before: str, after: str) -> Splice:
    """The difference of two texts."""
    start = 0
    shorter = min(len(before), len(after))
    while start < shorter and before[start] == after[start]:
        start += 1
    end = 0
    while end < shorter - start and before[-1 - end] == after[-1 - end]:
        end += 1
    return Splice(start, before[start : len(before) - end], after[start : len(after) - end])


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
