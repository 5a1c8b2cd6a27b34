"""Secrets that sessions and boxes use without seeing them: ``client.secrets``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nsm.wire.answers import read
from nsm.wire.secrets import SecretRevocation, SecretsReport, SecretTest

if TYPE_CHECKING:
    from nsm.client.blocking import Client


class Secrets:
    """Operations on secrets. Blocks. No answer has a value."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self) -> SecretsReport:
        """Describe all secrets, and who has them."""
        return read(SecretsReport, self._client.call("secrets"))

    def test(self, name: str) -> str:
        """Have a secret read as for a session. Returns a text of the kind that code sees.

        Raises:
            BadRequestError: there is no such secret, or no value.
        """
        return read(SecretTest, self._client.call("secret_test", {"name": name})).stand_in

    def revoke(self, name: str, owner: str | None = None) -> tuple[str, ...]:
        """Make the stand-ins of a secret worthless.

        Args:
            owner: a session or box; None for all.

        Returns:
            Ids of those that had it.
        """
        arguments = {"name": name} | ({"owner": owner} if owner is not None else {})
        return read(SecretRevocation, self._client.call("secret_revoke", arguments)).owners
