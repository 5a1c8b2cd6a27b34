"""A made-up tree of control groups, and programs that stand in for systemd's."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from nsmd.jail.limits import tree as files

BY_CONTROLLER = {
    "memory": {
        "memory.max": "max\n",
        "memory.swap.max": "max\n",
        "memory.oom.group": "0\n",
        "memory.events": "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n",
        "memory.peak": "1048576\n",
        "memory.current": "4096\n",
        "memory.stat": "anon 1\nfile 1024\n",
    },
    "pids": {"pids.max": "max\n", "pids.events": "max 0\n"},
    "cpu": {"cpu.weight": "100\n"},
}


class FakeTree:
    """A directory whose subdirectories get the files that the kernel would put there.

    Attributes:
        refused: files that do not take what is written, and what the kernel says.
    """

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.top = top
        self.refused: dict[str, OSError | str] = {}
        self.without: set[str] = set()
        self._write = files.write_file
        (top / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        (top / "cgroup.subtree_control").write_text("")
        (top / "cgroup.procs").write_text(f"{os.getpid()}\n")
        monkeypatch.setattr(files, "make_group", self.make)
        monkeypatch.setattr(files, "remove_group", self.remove)
        monkeypatch.setattr(files, "write_file", self.write)

    def _fill(self, directory: Path, controllers: str) -> None:
        (directory / "cgroup.controllers").write_text(controllers + "\n")
        (directory / "cgroup.subtree_control").write_text("")
        (directory / "cgroup.procs").write_text("")
        self._control(directory, controllers)

    def _control(self, directory: Path, controllers: str) -> None:
        for controller in set(controllers.split()) & BY_CONTROLLER.keys():
            for name, text in BY_CONTROLLER[controller].items():
                if name not in self.without and not (directory / name).exists():
                    (directory / name).write_text(text)

    def make(self, directory: str) -> None:
        parent = Path(directory).parent
        Path(directory).mkdir()
        self._fill(Path(directory), (parent / "cgroup.subtree_control").read_text())

    def remove(self, directory: str) -> None:
        below = any(each.is_dir() for each in Path(directory).iterdir())
        if below or (Path(directory) / "cgroup.procs").read_text().strip():
            raise OSError(16, os.strerror(16))
        shutil.rmtree(directory)

    def write(self, directory: str, name: str, text: str) -> None:
        path = Path(directory) / name
        match self.refused.get(name):
            case OSError() as error:
                raise error
            case str(instead):
                text = instead
            case _:
                pass
        if name == "cgroup.subtree_control":
            if text[0] == "+":
                for below in Path(directory).iterdir():
                    if below.is_dir():
                        self._control(below, text[1:])
            known = set(path.read_text().split())
            known = known | {text[1:]} if text[0] == "+" else known - {text[1:]}
            text = " ".join(sorted(known))
        elif name == "cgroup.procs":
            for each in self.top.rglob("cgroup.procs"):
                each.write_text("".join(f"{p}\n" for p in each.read_text().split() if p != text))
            text = path.read_text() + text + "\n"
        if not path.exists():
            raise FileNotFoundError(2, os.strerror(2))
        path.write_text("")
        self._write(directory, name, text)


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
