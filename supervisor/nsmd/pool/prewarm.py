"""Spares for clients that have just connected, for the environments that they will probably use."""

from __future__ import annotations

import logging
from collections.abc import Callable

from nsm.wire.errors import BadProjectError
from nsmd.environments.provider import Provider
from nsmd.model.values import Client, Environment, JailSpec, ProjectMount
from nsmd.pool.usage_history import UsageHistory

log = logging.getLogger(__name__)


class Prewarm:
    """Spares for clients that have just connected.

    Args:
        provider: provider of the environments.
        spec: makes the specification of a session.
        expect: tells the pool of a kind that will be wanted.
    """

    def __init__(
        self,
        provider: Provider,
        spec: Callable[[Environment, ProjectMount | None], JailSpec],
        expect: Callable[[JailSpec], None],
    ) -> None:
        self._provider = provider
        self._spec = spec
        self._expect = expect
        self._habits = UsageHistory()

    def expect(self, client: Client) -> None:
        """Prepare for an MCP client of a project.

        Args:
            client: its project and sources, as far as they are known yet.
        """
        if client.bound is None:
            self._provider.expect(client.project)
        for env in self._habits.project_came(client.project):
            self._warm(env, client)

    def greet(self, program: str, scope: str) -> None:
        """Prepare for a program on the control socket: what it used the last times."""
        for env, mount in self._habits.program_came(program, scope):
            self._warm(env, Client(name=program, scope=scope, project=mount))

    def used(self, client: Client, env: str) -> None:
        """Note that a client has taken a session."""
        self._habits.used(client, env)

    def _warm(self, env: str, client: Client) -> None:
        environment = self._provider.find_at_hand(client, env)
        if environment is None:
            return
        try:
            self._expect(self._spec(environment, client.project))
        except BadProjectError:
            log.debug("the project of a client that has come is gone")
