"""Programs that stand in for systemd's."""

from __future__ import annotations

from pathlib import Path


class Programs:
    """`busctl`, `systemctl` and `systemd-run` that note what they are asked.

    Attributes:
        variables: of a process whose user has a manager.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "systemd").mkdir()
        (directory / "systemd/private").write_text("")
        self.variables = {"XDG_RUNTIME_DIR": str(directory)}
        self.says("busctl")
        self.says("systemctl")
        self.says("systemd-run")

    def says(self, name: str, script: str = "") -> None:
        path = self._directory / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >>{self._directory}/log\n{script}\n')
        path.chmod(0o755)

    def asked(self) -> list[str]:
        log = self._directory / "log"
        return log.read_text().splitlines() if log.exists() else []
