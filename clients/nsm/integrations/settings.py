"""Settings of a sandbox, for frameworks whose configurations are models of pydantic."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class SandboxModel(BaseModel):
    """Settings that configurations of several frameworks have, as of `nsm.Client.sandbox`."""

    project: str | None = Field(default=None, description="Directory to see at /project.")
    project_mode: str | None = Field(
        default="overlay", description="overlay: commands change a copy; or readonly."
    )
    network: str | None = Field(default=None, description="off, full, or a list of hosts.")
    memory_mb: int | None = Field(default=None, description="Memory of the session, in MiB.")
    idle_s: float | None = Field(default=None, description="Idle time after which it ends.")
    socket_path: str | None = Field(default=None, description="Socket of the supervisor.")

    def of_sandbox(self) -> dict[str, Any]:
        """These settings, as arguments of a sandbox."""
        given = {name: getattr(self, name) for name in SandboxModel.model_fields}
        return given if self.project else {**given, "project_mode": None}
