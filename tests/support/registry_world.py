"""A real registry on loopback."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running_registry(place: Path, more: str = "") -> Generator[str]:
    """A registry without TLS, which the user's configuration allows; yields its address.

    Args:
        place: directory for its files, with the user's `home`.
        more: lines of its configuration.
    """
    settings = place / "registry.yml"
    settings.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {place}/registry}}}}\n"
        f"http: {{addr: '127.0.0.1:0'}}\n{more}"
    )
    with subprocess.Popen(
        ["docker-registry", "serve", str(settings)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            found = (re.search(r"listening on (127\.0\.0\.1:[0-9]+)", x) for x in process.stderr)
            address = next(match[1] for match in found if match is not None)
            allowed = place / "home" / ".config" / "containers" / "registries.conf"
            allowed.parent.mkdir(parents=True)
            allowed.write_text(f'[[registry]]\nlocation = "{address}"\ninsecure = true\n')
            yield address
        finally:
            process.kill()
