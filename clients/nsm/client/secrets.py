"""Secrets that sessions and boxes use without seeing them: ``client.secrets`` of either client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.client.steps import AsyncPart, BlockingPart, Calls, ask, method
from nsm.wire import host as wire

if TYPE_CHECKING:
    from nsm.client.steps import Steps
    from nsm.wire.host import SecretsReport


class SecretMethods(Calls):
    """Operations on secrets. No answer has a value."""

    @method
    def list(self) -> Steps[SecretsReport]:
        """Describe all secrets, and who has them."""
        return (yield from ask(wire.secrets()))

    @method
    def test(self, name: str) -> Steps[str]:
        """Have a secret read as for a session. Returns a text of the kind that code sees.

        Raises:
            BadRequestError: there is no such secret, or no value.
        """
        return (yield from ask(wire.secret_test(name)))

    @method
    def revoke(self, name: str, owner: str | None = None) -> Steps[tuple[str, ...]]:
        """Make the stand-ins of a secret worthless.

        Args:
            owner: a session or box; None for all.

        Returns:
            Ids of those that had it.
        """
        return (yield from ask(wire.secret_revoke(name, owner)))


class Secrets(SecretMethods, BlockingPart):
    """``nsm.Client.secrets``."""


class AsyncSecrets(SecretMethods, AsyncPart):
    """``nsm.AsyncClient.secrets``."""
