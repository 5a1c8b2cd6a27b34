"""Settings of `nsm e2b serve`: the most that its clients can have."""

from __future__ import annotations

from nsm.dataclass import dataclass

ENVD_VERSION = "0.6.4"
"""Version of E2B's own program in a sandbox that this server speaks like. Clients choose by it."""

HOME = "/home/user"
"""Home directory of E2B's sandboxes, which programs name in full."""

DEFAULT_TIMEOUT_S = 300
"""Time that a sandbox lives if its client says nothing, as E2B's own do."""

TEMPLATES = ("base", "code-interpreter-v1")
"""Templates that clients ask for by default. They mean the first environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Limits of all clients.

    Attributes:
        environments: names of the environments that clients can have; the first is the default.
        project: directory of the host of which each sandbox has a copy as its home directory.
        home: home directory in a sandbox.
        network: what sandboxes reach at most, as `nsm run --network` has it.
        memory_mb: memory of a sandbox; None for the environment's own.
        max_timeout_s: how long a sandbox may live at most.
        max_sandboxes: how many there may be at once, of one key.
    """

    environments: tuple[str, ...] = ("python",)
    project: str | None = None
    home: str = HOME
    network: str = "off"
    memory_mb: int | None = None
    max_timeout_s: int = 3600
    max_sandboxes: int = 100
