"""Sandbox provider of Deep Agents Code, for ``dcode --sandbox nsm``. It needs Python 3.12."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepagents_code.integrations.sandbox_provider import (
    SandboxNotFoundError,
    SandboxProvider,
    SandboxProviderMetadata,
)

from nsm.integrations.deepagents import NsmBackend
from nsm.wire.errors import UnknownSessionError

if TYPE_CHECKING:
    from deepagents.backends.protocol import SandboxBackendProtocol

METADATA = SandboxProviderMetadata(name="nsm", working_dir="/workspace", supports_sandbox_id=True)


class NsmProvider(SandboxProvider):
    """Makes and ends sandboxes. Deep Agents Code finds it by its entry point."""

    @property
    def metadata(self) -> SandboxProviderMetadata:
        """Facts that Deep Agents Code asks for before it makes one."""
        return METADATA

    def get_or_create(
        self, *, sandbox_id: str | None = None, **kwargs: Any
    ) -> SandboxBackendProtocol:
        """Make a sandbox, or return the one that has this id.

        Args:
            kwargs: settings of `NsmBackend`, from the ``params`` in Deep Agents Code's own
                configuration.

        Raises:
            SandboxNotFoundError: there is none of this id, or no longer.
            TypeError: there is no such setting.
        """
        backend = NsmBackend(sandbox_id, **kwargs)
        try:
            backend.begin()
        except UnknownSessionError as error:
            raise SandboxNotFoundError(str(error)) from error
        return backend

    def delete(self, *, sandbox_id: str, **kwargs: Any) -> None:  # noqa: ARG002  # the framework's
        """End a sandbox, if it has not ended yet."""
        backend = NsmBackend(sandbox_id)
        try:
            backend.begin()
        except UnknownSessionError:
            return
        backend.close()
