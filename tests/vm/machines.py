"""A user of nsm in a test machine of their own."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import guestclone
import guestmachine

if TYPE_CHECKING:
    from collections.abc import Generator

    from guestimage import Image
    from guestmachine import Done, Guest

TRIES = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody with a clone of nsm.

    Attributes:
        clone: its directory in the guest.
    """

    guest: Guest
    name: str
    clone: str

    @property
    def bin(self) -> str:
        return f"{self.clone}/.venv/bin"

    def shell(self, line: str, timeout_s: float = guestmachine.RUN_S) -> Done:
        """A line for the shell in their home; no login, but with their service manager at hand."""
        return self.guest.run(line, user=self.name, timeout_s=timeout_s)

    def root(self, line: str) -> str:
        """A line that root's shell has to succeed with."""
        return self.guest.run(line, user="root").check()

    def nsm(self, *arguments: str, stdin: str = "") -> Done:
        """One of nsm's commands."""
        return self.guest.run(f"{self.bin}/nsm", *arguments, user=self.name, stdin=stdin)

    def reach(self) -> dict[str, Any]:
        """The status of the supervisor that systemd has to start first.

        A client gives it 10 s to answer, which is not always enough for an emulated processor.
        """
        status: dict[str, Any] = json.loads(self.shell(self.wait).check())
        return status

    @property
    def wait(self) -> str:
        """A line for the shell that waits for a supervisor that is starting; prints its status."""
        status = f"{self.bin}/nsm status --json"
        quiet = f"{status} >/dev/null 2>&1"
        return f"for _ in $(seq {TRIES}); do {quiet} && break; sleep 1; done; {status}"

    def start(self) -> dict[str, Any]:
        """Have a client start a supervisor; its status."""
        self.nsm("run", "-e", "python", "1")  # may have given up waiting for it: see `reach`
        return self.reach()

    def run(self, code: str, *, env: str = "python", session: str | None = None) -> dict[str, Any]:
        """Code in a session, or in a fresh jail: the result of `nsm run --json`."""
        where = ["-s", session] if session else []
        done = self.nsm("run", "--json", "-e", env, *where, "-f", "-", stdin=code)
        assert done.stdout, done
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def rows(self) -> dict[str, dict[str, Any]]:
        """The sessions by their names."""
        return {row["name"]: row for row in json.loads(self.nsm("ps", "--json").check())}

    def configure(self, text: str) -> None:
        """Have this `config.toml`."""
        command = "mkdir -p ~/.config/nsm && cat > ~/.config/nsm/config.toml"
        self.guest.run(command, user=self.name, stdin=text).check()

    def install_units(self) -> None:
        """Have systemd keep the supervisor."""
        self.nsm("service", "install", "--yes").check()


@contextmanager
def person(image: Image, name: str) -> Generator[Person]:
    """A machine for one user of nsm; it is gone at the end of the block."""
    with guestmachine.guest(image) as guest:
        yield Person(guest=guest, name=name, clone=guestclone.install(guest, name))
