"""The values of the secrets of one session or box, in the process that uses them."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import trio

from nsm.dataclass import dataclass
from nsmd.model.secrets import SecretRule
from nsmd.network.secrets.redaction import Patterns
from nsmd.network.secrets.source import SourceError
from nsmd.network.secrets.stand_ins import make_stand_in

LEAST_AGE_S = 30.0
"""A source is asked again no sooner: code can have a server answer 401 as often as it likes."""

LEAST_FORMER = 4
FORMER_S = 3600.0
"""Earlier values that responses are still searched for: so many, and those that were in use in that
time. Code can have values replaced every `LEAST_AGE_S`, by a server that answers 401; that makes at
most 120.
"""

Ask = Callable[[SecretRule], Awaitable[str]]
"""Reads the value of a secret.

Raises:
    SourceError: it cannot be read.
"""


async def _ask_nobody(_: SecretRule) -> str:
    raise SourceError("nobody reads it again")


@dataclass(slots=True, kw_only=True)
class HeldSecret:
    """One secret with its value.

    Attributes:
        former: earlier values and when they were replaced, the newest last.
        read_s: when the source was asked, on the monotonic clock.
        refused: a server answered 401 since.
        revoked: its stand-in is worth nothing any more.
    """

    secret: SecretRule
    stand_in: str
    value: str
    former: tuple[tuple[str, float], ...] = ()
    read_s: float
    refused: bool = False
    revoked: bool = False


class Vault:
    """All secrets of one session or box."""

    def __init__(self, held: Sequence[HeldSecret], ask: Ask = _ask_nobody) -> None:
        self._held = {each.secret.name: each for each in held}
        self._ask = ask
        self._lock = trio.Lock()
        self.patterns = self._patterns()

    @classmethod
    async def read(cls, secrets: Sequence[SecretRule], known: Mapping[str, str], ask: Ask) -> Vault:
        """Read all values."""
        held: list[HeldSecret] = []
        for secret in secrets:  # one after the other: some ask the person
            try:
                value = await ask(secret)
            except SourceError as error:
                raise SourceError(f"secret {secret.name}: {error}") from None
            held.append(
                HeldSecret(
                    secret=secret,
                    stand_in=known.get(secret.name) or make_stand_in(value),
                    value=value,
                    read_s=time.monotonic(),
                )
            )
        return cls(held, ask)

    @property
    def stand_ins(self) -> dict[str, str]:
        """Stand-ins by name, those of revoked secrets included."""
        return {name: each.stand_in for name, each in self._held.items()}

    def usable(self, host: str, port: int) -> dict[str, tuple[str, str]]:
        """Stand-in and value of the secrets for a host, by name."""
        return {
            name: (each.stand_in, each.value)
            for name, each in self._held.items()
            if not each.revoked and each.secret.is_for(host, port)
        }

    def added_headers(self, host: str, port: int) -> list[tuple[str, str, str]]:
        """Headers to add to requests for a host: secret, name, and what is before the value."""
        return [
            (name, header, prefix)
            for name, each in self._held.items()
            if not each.revoked and each.secret.is_for(host, port)
            for header, prefix in each.secret.headers
        ]

    def revoke(self, name: str) -> None:
        """Use a secret no more. Responses are still searched for it."""
        if name in self._held:
            self._held[name].revoked = True

    def refused(self, names: Sequence[str]) -> None:
        """A server answered 401 to a request with these secrets."""
        for name in names:
            self._held[name].refused = True

    async def refresh(self, names: Sequence[str]) -> None:
        """Ask the sources of refused secrets again; keep the value if they give none."""
        async with self._lock:
            for name in names:
                each = self._held[name]
                if not each.refused or time.monotonic() < each.read_s + LEAST_AGE_S:
                    continue
                each.refused, each.read_s = False, time.monotonic()
                try:
                    value = await self._ask(each.secret)
                except SourceError as error:
                    with suppress(OSError):
                        sys.stderr.write(f"secret {name} keeps its old value: {error}\n")
                    continue
                if value != each.value:
                    now = time.monotonic()
                    former = (*each.former, (each.value, now))
                    old = [row for row in former[:-LEAST_FORMER] if row[1] > now - FORMER_S]
                    each.former = (*old, *former[-LEAST_FORMER:])
                    each.value = value
                    self.patterns = self._patterns()

    def _patterns(self) -> Patterns:
        return Patterns(
            (value, each.stand_in)
            for each in self._held.values()
            for value in (*(value for value, _ in each.former), each.value)
        )
