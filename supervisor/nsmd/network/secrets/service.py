"""All secrets: as configured, and as granted to sessions and boxes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import trio

from nsm.wire.errors import BadRequestError, OverloadedError
from nsm.wire.inspection import is_request_rule
from nsmd.fdstore import records
from nsmd.fdstore.records import KeptEntries
from nsmd.fdstore.store import DescriptorStore
from nsmd.host.descriptors import MAX_GRANTS
from nsmd.model.events import Events
from nsmd.model.host_rules import AllowList
from nsmd.model.secrets import MAX_SECRETS, SecretRule, same_header
from nsmd.model.values import NetworkRule
from nsmd.network.secrets.grant import GRANT, Grant, GrantRecord, HelperProcess, try_out

log = logging.getLogger(__name__)


class SecretService:
    """All secrets, for at most so many sessions and boxes at once. The numbers of uses and refusals
    are of grants that have ended since this supervisor started.
    """

    def __init__(self, *, store: DescriptorStore, events: Events, most: int = MAX_GRANTS) -> None:
        self._store = store
        self._events = events
        self._most = most
        self._configured: Mapping[str, SecretRule] = {}
        self._grants: dict[str, Grant] = {}
        self._granting = 0
        self._left: dict[str, tuple[GrantRecord, HelperProcess, int]] = {}
        self._served = trio.Event()
        self._nursery: trio.Nursery | None = None
        self._leaving = False
        self.uses = self.refusals = 0

    def __repr__(self) -> str:
        return f"<SecretService of {len(self._grants)} grants>"

    def configure(self, secrets: Mapping[str, SecretRule]) -> None:
        """Use other secrets for sessions and boxes that begin from now on."""
        self._configured = dict(secrets)

    def take_up(self, entries: KeptEntries) -> None:
        """Take over what an earlier supervisor has granted; call before `serve`."""

        def take(record: GrantRecord, descriptors: list[int]) -> list[int]:
            found = records.matched(descriptors, record.control, record.state)
            self._left[record.owner] = record, HelperProcess.taken_up(*found[:2]), found[2]
            return found

        entries.take_over(GRANT, GrantRecord, take, owner=lambda record: record.owner)

    async def serve(
        self,
        owners: Callable[[], set[str]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve all grants until cancelled. Then they end, unless `leave` was called. `owners`
        returns ids of the live sessions and boxes: others have ended while there was no supervisor.
        """
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                left, self._left = self._left, {}
                for record, helper, state in left.values():
                    self._grants[record.owner] = Grant(
                        record,
                        helper,
                        state,
                        store=self._store,
                        events=self._events,
                        nursery=nursery,
                    )
                for owner in self._grants.keys() - owners():
                    self.end(owner)
                self._served.set()
                task_status.started()
                await trio.sleep_forever()
        finally:
            self._nursery = None
            if not self._leaving:
                for owner in list(self._grants):
                    self.end(owner)

    def leave(self) -> None:
        """Leave all grants to the next supervisor."""
        self._leaving = True
        for grant in self._grants.values():
            grant.part()

    def check(self, names: Sequence[str], rule: NetworkRule) -> list[SecretRule]:
        """Find secrets by their names, for somebody who reaches these hosts.

        A `BadRequestError` says which of them cannot be used there, and why.
        """
        unknown = [name for name in names if name not in self._configured]
        if unknown:
            known = ", ".join(self._configured) or "none"
            raise BadRequestError(
                f"There is no secret {unknown[0][:80]!r}; configured: {known}.",
                hint="Describe it in config.toml, [secrets.NAME] (docs/how-to/network.md), then "
                "`nsm reload --config`.",
            )
        if len(names) > MAX_SECRETS:
            raise BadRequestError(
                f"{len(names)} secrets, expected at most {MAX_SECRETS}.",
                hint="Leave out those that the code does not need.",
            )
        secrets = [self._configured[name] for name in dict.fromkeys(names)]
        if secrets and rule.mode != "allow":
            word = {"off": "off", "full": "the host's own"}[rule.mode]
            raise BadRequestError(
                f"Secrets need a list of allowed hosts, and this network is {word}: nsm's proxy "
                "puts them into requests, and only a list leads through the proxy.",
                hint=f"Allow the hosts: --network {','.join(h.text for h in secrets[0].hosts)}",
            )
        allowed = AllowList.of(rule.allow)
        for secret in secrets:
            if not any(allowed.permits(host.name, host.port) for host in secret.hosts):
                hosts = ", ".join(host.text for host in secret.hosts)
                raise BadRequestError(
                    f"Secret {secret.name} is for {hosts}, and none of these may be reached.",
                    hint="Allow one in `network`, or leave the secret out.",
                )
        if both := same_header(secrets):
            first, second, header = both
            raise BadRequestError(
                f"Secrets {first.name} and {second.name} both add the header {header} to requests "
                "for one host.",
                hint="Grant one of them, or have one of them `as` a variable only.",
            )
        return secrets

    async def grant(self, owner: str, names: Sequence[str], rule: NetworkRule) -> Grant:
        """Give secrets to a session or box that begins, and may reach these hosts."""
        secrets = self.check(names, rule)
        if self._nursery is None:
            raise OverloadedError("The supervisor is ending.", hint="Try again in a moment.")
        if len(self._grants) + self._granting >= self._most:
            raise OverloadedError(
                f"{self._most} sessions and boxes have secrets or rules for requests already.",
                hint="End some of them; `nsm ps` lists sessions, and `nsm secrets` those that have "
                "secrets.",
            )
        self._granting += 1
        try:
            made = await Grant.make(
                owner,
                secrets,
                [text for text in rule.allow if is_request_rule(text)],
                store=self._store,
                events=self._events,
                nursery=self._nursery,
            )
        finally:
            self._granting -= 1
        self._grants[owner] = made
        if secrets:
            self._events.publish("secret_granted", owner=owner, secrets=list(names))
        return made

    async def wait_taken_up(self, owner: str) -> None:
        """Wait until what an earlier supervisor has granted to a session or box is served."""
        if owner in self._left:
            await self._served.wait()

    def held_by(self, owner: str) -> Grant | None:
        """Return the grant of a session or box."""
        return self._grants.get(owner)

    def end(self, owner: str) -> None:
        """Take its secrets from a session or box that has ended; harmless if it has none."""
        grant = None if self._leaving else self._grants.pop(owner, None)
        if grant is not None:
            self.uses += sum(grant.uses.values())
            self.refusals += grant.refusals
            grant.end()

    def revoke(self, name: str, owner: str | None = None) -> list[str]:
        """Make the stand-ins of a secret worthless, for one session or box or for all.

        Returns the ids of those that had it.
        """
        revoked = [
            each
            for each, grant in self._grants.items()
            if owner in (None, each) and grant.revoke(name)
        ]
        if revoked:
            self._events.publish("secret_revoked", secret=name, owners=revoked)
        return revoked

    async def test(self, name: str) -> str:
        """Read a secret as for a session, and return a stand-in for it."""
        if name not in self._configured:
            self.check([name], NetworkRule(mode="allow"))
        return await try_out(self._configured[name])

    def rows(self) -> dict[str, Any]:
        """Describe all secrets, and who has them, without values."""
        return {
            "secrets": [
                {
                    "name": secret.name,
                    "source": secret.source.kind,
                    "hosts": [host.text for host in secret.hosts],
                    "variables": list(secret.variables),
                    "headers": [name for name, _ in secret.headers],
                }
                for secret in self._configured.values()
            ],
            "grants": [
                {
                    "owner": owner,
                    "secret": name,
                    "uses": uses,
                    "revoked": name in grant.record.revoked,
                    "helper_pid": grant.helper_pid,
                }
                for owner, grant in self._grants.items()
                for name, uses in grant.uses.items()
            ],
        }

    def counts(self) -> tuple[int, int]:
        """Numbers of uses and of refusals since this supervisor started."""
        grants = self._grants.values()
        return (
            self.uses + sum(sum(grant.uses.values()) for grant in grants),
            self.refusals + sum(grant.refusals for grant in grants),
        )

    def everything_kept(self) -> Iterator[tuple[str, Sequence[int]]]:
        for grant in list(self._grants.values()):
            yield from grant.everything_kept()
