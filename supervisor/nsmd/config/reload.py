"""Application of a changed `config.toml` in a running supervisor: changes, applied ones, and ones
that wait.

Changes that do not affect existing sessions apply to new sessions and calls. The others are
reported, and apply after a restart (`nsm reload`). A file with mistakes changes nothing.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, cast

import trio

from nsm.dataclass import dataclass, replace
from nsmd.model.events import Events
from nsmd.model.settings import HIDDEN, EnvironmentSettings, Settings
from nsmd.model.values import Environment

log = logging.getLogger(__name__)

APPLIED = frozenset(
    (
        "audit",
        "box",
        "bridge",
        "defaults.cpu_weight",
        "defaults.env",
        "defaults.interrupt_grace_seconds",
        "defaults.memory_mb",
        "defaults.overlay_mb",
        "defaults.shm_mb",
        "defaults.timeout_seconds",
        "defaults.tmp_mb",
        "defaults.workspace_mb",
        "drain",
        "environments",
        "hosts",  # clients read them
        "mcp",
        "pool",
        "ports",
        "project.mode",
        "project.mount_point",
        "project.path",
        "secrets",
        "session.idle_timeout_seconds",
        "session.keep",
        "session.max_lifetime_seconds",
        "session.max_queued",
        "session.max_sessions",
        "session.saves_mb",
    )
)
"""Keys, or whole sections, that can be applied at run time. Others wait for a restart; so a new key
is never reported wrongly.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedKey:
    """A key with a changed value.

    Attributes:
        old, new: JSON values; `none` if there is none.
    """

    key: str
    old: str
    new: str
    applied: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reloaded:
    """Result of rereading the file.

    Attributes:
        problems: mistakes in the file, one line each; then nothing was changed.
    """

    changes: tuple[ChangedKey, ...] = ()
    problems: tuple[str, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """Return it for clients."""
        changes = [dataclasses.asdict(change) for change in self.changes]
        return {"changes": changes, "problems": list(self.problems)}


Load = Callable[[], tuple[Settings | None, Sequence[str]]]
"""Reads the file: settings, or the mistakes in it. Blocks."""


class Reconfiguration:
    """Reader of a changed file that applies the changes.

    Args:
        find_environments: finds the host's environments for settings; blocks.
        apply: applies settings and environments; does not fail.
        look_again: called after each reload, also without changes in the file itself.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        load: Load,
        find_environments: Callable[[Settings], Sequence[Environment]],
        apply: Callable[[Settings, Sequence[Environment]], Awaitable[None]],
        events: Events,
        path: str = "config.toml",
        look_again: Callable[[], None] = lambda: None,
    ) -> None:
        self.settings = settings
        self.path = path
        self._look_again = look_again
        self._load = load
        self._find_environments = find_environments
        self._apply = apply
        self._events = events
        self._one_at_a_time = trio.Lock()

    def __repr__(self) -> str:
        return "<Reconfiguration>"

    async def reload(self, asked_by: str) -> Reloaded:
        """Read the file, apply what can be applied, and say what changed."""
        async with self._one_at_a_time:
            wanted, problems = await trio.to_thread.run_sync(self._load)
            if wanted is None:
                log.error("the configuration stays as it was, since the file has mistakes:")
                for problem in problems:
                    log.error("%s", problem)
                self._publish(asked_by, problems=len(problems))
                return Reloaded(problems=tuple(problems))
            changes = tuple(compare(self.settings, wanted))
            if any(change.applied for change in changes):
                settings = merge(self.settings, wanted)
                environments = await trio.to_thread.run_sync(self._find_environments, settings)
                self.settings = settings
                await self._apply(settings, environments)
            self._look_again()
        if not changes:
            log.info("configuration read again for %s: nothing has changed", asked_by)
        for change in changes:
            when = "" if change.applied else ", which holds after `nsm reload`"
            log.info("configuration: %s: %s -> %s%s", change.key, change.old, change.new, when)
        self._publish(
            asked_by,
            applied=[change.key for change in changes if change.applied],
            waiting=[change.key for change in changes if not change.applied],
        )
        return Reloaded(changes=changes)

    def _publish(self, asked_by: str, **facts: Any) -> None:
        self._events.publish("configuration_reloaded", asked_by=asked_by, **facts)


def compare(old: Settings, new: Settings) -> Iterator[ChangedKey]:
    """Compare settings key by key, in the order of the documentation."""
    for section in dataclasses.fields(Settings):
        before, after = getattr(old, section.name), getattr(new, section.name)
        if isinstance(before, Mapping):
            yield from _compare_entries(section.name, cast("Mapping[str, Any]", before), after)
        else:
            yield from _compare_tables(section.name, before, after)


def merge(old: Settings, new: Settings) -> Settings:
    """Merge settings: new values if they can be applied, else old ones."""
    sections: dict[str, Any] = {}
    for section in dataclasses.fields(Settings):
        before, after = getattr(old, section.name), getattr(new, section.name)
        if section.name == "environments":
            chosen: dict[str, EnvironmentSettings] = {}
            for name in dict.fromkeys((*before, *after)):
                was, is_ = before.get(name), after.get(name)
                if (entry := was if _waits(was, is_) else is_) is not None:
                    chosen[name] = entry
            after = chosen
        elif section.name not in APPLIED:
            applied = {
                field.name: getattr(after, field.name)
                for field in dataclasses.fields(before)
                if f"{section.name}.{field.name}" in APPLIED
            }
            after = dataclasses.replace(before, **applied)
        sections[section.name] = after
    return Settings(**sections)


def _compare_tables(key: str, before: Any, after: Any) -> Iterator[ChangedKey]:
    for field in dataclasses.fields(before):
        old, new = getattr(before, field.name), getattr(after, field.name)
        inner = f"{key}.{field.name}"
        if dataclasses.is_dataclass(old):
            yield from _compare_tables(inner, old, new)
        elif old != new:
            applied = any(inner == each or inner.startswith(f"{each}.") for each in APPLIED)
            yield ChangedKey(key=inner, old=_shown(old), new=_shown(new), applied=applied)


def _compare_entries(
    section: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[ChangedKey]:
    """Compare tables with names: those of environments key by key."""
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        key, applied = f"{section}.{name}", not _waits(old, new)
        if not isinstance(old, EnvironmentSettings) or not isinstance(new, EnvironmentSettings):
            came = "added" if section == "environments" else "changed"
            words = ("none" if old is None else "there", "none" if new is None else came)
            yield ChangedKey(key=key, old=words[0], new=words[1], applied=applied)
            continue
        for change in _compare_tables(key, old, new):
            shown = {"old": HIDDEN, "new": HIDDEN} if change.key == f"{key}.env" else {}
            yield replace(change, applied=applied, **shown)


def _waits(*entries: object) -> bool:
    """Return whether Nix builds an environment: such changes wait for a restart."""
    return any(isinstance(each, EnvironmentSettings) and each.flake is not None for each in entries)


def _shown(value: Any) -> str:
    return "none" if value is None else json.dumps(value, default=str)
