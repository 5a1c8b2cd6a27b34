"""A bridge with real programs, which are scripts in a directory of the test's own."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nsmd.bridge.bridge import BridgePaths, BridgeService, open_bridge
from nsmd.bridge.programs import Caller
from nsmd.host.source_watcher import open_source_watcher
from nsmd.model.events import Events, SupervisorEvent
from nsmd.model.lifecycle import Shutdown
from nsmd.model.settings import BridgeSettings

ANYONE = Caller(client="test", scope="test", way="control", peer=(1, 1000))


@dataclass
class Bench:
    """The directories of a bridge, and the bridge once it is open."""

    home: Path
    ending: Shutdown = field(default_factory=Shutdown)
    events: Events = field(default_factory=Events)
    happened: list[tuple[str, dict[str, Any]]] = field(
        default_factory=list[tuple[str, dict[str, Any]]]
    )

    @property
    def ledger(self) -> Path:
        return self.home / "state" / "audit.log"

    def furnish(self) -> None:
        for name in ("tools", "state", "bin"):
            (self.home / name).mkdir(mode=0o700)

    def script(self, name: str, body: str, **front: object) -> Path:
        """A program of that name, described so."""
        path = self.home / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        self.describe(name, command=str(path), **front)
        return path

    def describe(self, name: str, **front: object) -> Path:
        """Write a definition file."""
        lines = {"name": name, "description": f"Does {name}.", **front}
        text = "".join(f"{key}: {json.dumps(value)}\n" for key, value in lines.items())
        path = self.home / "tools" / f"{name}.md"
        path.write_text(f"---\n{text}---\nHow to use {name}.\n")
        return path

    def records(self) -> list[dict[str, Any]]:
        """Read the ledger's records, without times."""
        if not self.ledger.exists():
            return []
        return [json.loads(line) for line in self.ledger.read_text().splitlines()]

    def _hear(self, event: SupervisorEvent) -> None:
        self.happened.append((event.kind, dict(event.facts)))

    @asynccontextmanager
    async def open(self, *, enabled: bool = True, **settings: Any) -> AsyncGenerator[BridgeService]:
        unsubscribe = self.events.subscribe(self._hear)
        async with (
            open_source_watcher() as watcher,
            open_bridge(
                BridgePaths(
                    definitions=str(self.home / "tools"),
                    ledger=str(self.ledger),
                    variables={"HOME": str(self.home), "PATH": "/usr/bin:/bin"},
                ),
                watcher,
                ending=self.ending,
                events=self.events,
                output_bytes=lambda: 40_000,
            ) as bridge,
        ):
            await bridge.configure(BridgeSettings(enabled=enabled, **settings))
            yield bridge
        unsubscribe()
