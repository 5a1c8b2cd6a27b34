"""A project with a flake, and a nix that knows it, for the tests of development shells."""

from __future__ import annotations

import os
import platform
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import trio

from fake_nix import FakeNix
from nsm.wire.errors import NixUnavailableError
from nsmd.environments.devshell import NAME
from nsmd.environments.devshell.project_shells import DevShells
from nsmd.environments.nix.program import MAX_OUTPUT_BYTES, NixExitError, NixFinder, NixRunError
from nsmd.host.commands import OnProgress
from nsmd.model.values import ClientIdentity, Environment, ProjectMount, ReadOnlyBind

BASH = Environment(
    name="bash",
    interpreter="bash",
    agent_python="/usr/bin/python3",
    program="/bin/bash",
    binds=(ReadOnlyBind(source="/opt/python", target="/opt/python"),),
)
ATTRIBUTE = f"devShells.{platform.machine()}-linux.default"
OLDER_ATTRIBUTE = f"devShell.{platform.machine()}-linux"
SAMPLES = Path(__file__).parents[1] / "supervisor" / "environments" / "devshell" / "samples"
SAMPLE = (SAMPLES / "nix-2.8.json").read_text()
WAIT_S = 120.0


class Gate:
    """Gate at which a run of nix waits."""

    def __init__(self) -> None:
        self.reached = trio.Event()
        self.opened = trio.Event()


class QuickNix:
    """The same as `FakeNix` without processes, for what does not depend on them."""

    def __init__(self) -> None:
        self._plan: dict[str, tuple[tuple[str, Any], ...]] = {}
        self._calls: list[list[str]] = []
        self.missing = False
        self.variables = {"PATH": os.environ["PATH"]}

    async def find(self) -> QuickNix:
        if self.missing:
            raise NixUnavailableError("This needs Nix: there is none on PATH.")
        return self

    def builds(self, attribute: str, *steps: tuple[str, Any]) -> str:
        self._plan[attribute] = steps
        return attribute

    def calls(self) -> list[dict[str, Any]]:
        return [{"arguments": arguments} for arguments in self._calls]

    async def run(
        self,
        arguments: Sequence[str],
        *,
        timeout_s: float,
        on_progress: OnProgress | None = None,
        max_output_bytes: int = MAX_OUTPUT_BYTES,
        log_fd: int | None = None,
        directory: str = "/",
        tree: str = "",
    ) -> bytes:
        del on_progress, log_fd, directory, tree
        self._calls.append(list(arguments))
        await trio.lowlevel.checkpoint()
        attribute = arguments[arguments.index("--") + 1].rpartition("#")[2]
        if attribute not in self._plan:
            raise NixExitError(
                "nix", 1, error=f"flake does not provide attribute {attribute!r}", tail=()
            )
        printed = ""
        for step, value in self._plan[attribute]:
            match step:
                case "gate":
                    value.reached.set()
                    await value.opened.wait()
                case "profile":
                    Path(arguments[arguments.index("--profile") + 1]).symlink_to(value)
                case "print":
                    printed += value
                case "fail":
                    raise NixExitError("nix", 1, error=value, tail=())
                case _:
                    await trio.sleep(timeout_s)
                    raise NixRunError(f"`nix` was stopped after {timeout_s:g} s.")
        if len(printed) > max_output_bytes:
            raise NixRunError(f"`nix` printed more than {max_output_bytes} bytes.")
        return printed.encode()


@dataclass
class World:
    """A project with a flake, a store, and a nix that knows them."""

    root: Path
    nix: FakeNix | QuickNix
    project: Path = field(init=False)
    told: int = 0

    def __post_init__(self) -> None:
        self.project = self.root / "project"
        self.project.mkdir()
        (self.project / "flake.nix").write_text("{}")
        self.store = self.root / "store"
        for name in ("aaaa-shell-env", "bbbb-tool"):
            (self.store / name).mkdir(parents=True)

    @property
    def state(self) -> Path:
        return self.root / "state"

    def has_shell(self, *before: tuple[str, Any], attribute: str = ATTRIBUTE) -> None:
        """Let nix find a shell in the flake from now on."""
        root = str(self.store / "aaaa-shell-env")
        closure = f"{self.store / 'bbbb-tool'}\n{root}\n"
        self.nix.builds(attribute, *before, ("profile", root), ("print", SAMPLE))
        self.nix.builds(root, ("print", closure))

    @asynccontextmanager
    async def shells(
        self, *inherit: str, base: Callable[[], Environment | None] = lambda: BASH
    ) -> AsyncGenerator[DevShells]:
        async with trio.open_nursery() as nursery:
            shells = DevShells(
                inherit, base, state=str(self.state), nix=self.finder(), nursery=nursery
            )
            shells.changed = self.note
            with trio.fail_after(WAIT_S):
                yield shells
            nursery.cancel_scope.cancel()

    def finder(self) -> NixFinder:
        if isinstance(self.nix, QuickNix):
            return cast("NixFinder", self.nix)
        return NixFinder(str(self.nix.folder), {}, str(self.root))

    def note(self) -> None:
        self.told += 1

    def client(self, **fields: Any) -> ClientIdentity:
        found = self.project.stat()
        mount = ProjectMount(
            path=str(self.project), mount_point="/project", device=found.st_dev, inode=found.st_ino
        )
        return ClientIdentity(name="t", scope="t", project=mount, **fields)

    async def settled(self, shells: DevShells, client: ClientIdentity | None = None) -> Environment:
        """The shell when nothing more is done for it."""
        client = client or self.client()
        while (event := self.pending(shells, client)) is not None:
            await event.wait()
        environment = shells.environment(client)
        assert environment is not None
        return environment

    @staticmethod
    def pending(shells: DevShells, client: ClientIdentity) -> trio.Event | None:
        environment = shells.environment(client)
        assert environment is not None
        event = shells.settled(client, NAME)
        assert (event is None) == (environment.pending is None)
        return event

    def evaluations(self) -> int:
        return sum("print-dev-env" in call["arguments"] for call in self.nix.calls())
