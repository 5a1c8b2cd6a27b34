"""The peer: Jupyter kernels (ipykernel), driven by jupyter_client as its documentation shows."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from private_supervisor import interrupts_deferred

NAME = "ipykernel"
START_TIMEOUT_S = 120.0
CALL_TIMEOUT_S = 30.0


class KernelsMissingError(Exception):
    """A package is not installed; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A live kernel with a blocking client.

    Attributes:
        manager, client: jupyter_client's own objects.
    """

    manager: Any
    client: Any

    @property
    def pid(self) -> int:
        """The kernel's process."""
        pid: int = self.manager.provisioner.pid
        return pid

    @property
    def connection_file(self) -> str:
        """File that tells other processes how to connect."""
        path: str = self.manager.connection_file
        return path

    def execute(self, code: str = "pass") -> None:
        """Run code, which has to succeed, and wait for the reply."""
        execute(self.client, code)


class Kernels:
    """Kernels that are ended with the context.

    Raises:
        KernelsMissingError: from the constructor.
    """

    def __init__(self) -> None:
        try:
            self._manager_module: Any = importlib.import_module("jupyter_client.manager")
            importlib.import_module("ipykernel")
        except ImportError as error:
            raise KernelsMissingError(
                f"{error.name} is not installed; `make bench` does that"
            ) from None
        self._home = tempfile.TemporaryDirectory(prefix="nsm-bench-kernels-")
        self.all: list[Kernel] = []
        # The kernels' own files (history, connection files) stay out of the user's home.
        os.environ.update(IPYTHONDIR=self._home.name, JUPYTER_RUNTIME_DIR=self._home.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A second Ctrl-C must not keep this from ending what was started.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for kernel in self.all:
                kernel.client.stop_channels()
                kernel.manager.shutdown_kernel(now=True)
            self._home.cleanup()
        finally:
            signal.signal(signal.SIGINT, handler)

    def start(self, number: int) -> list[Kernel]:
        """Start that many more, all at once, and run one statement in each."""
        new: list[Kernel] = []
        for _ in range(number):
            with interrupts_deferred():  # else a kernel could be started and not be known
                manager = self._manager_module.KernelManager(kernel_name="python3")
                manager.start_kernel(stderr=subprocess.DEVNULL)
                kernel = Kernel(manager=manager, client=manager.blocking_client())
                self.all.append(kernel)
            kernel.client.start_channels()
            new.append(kernel)
        for kernel in new:
            kernel.client.wait_for_ready(timeout=START_TIMEOUT_S)
            kernel.execute()
        return new

    def at_least(self, number: int) -> list[Kernel]:
        """Return this number of kernels, starting those that are missing."""
        self.start(max(0, number - len(self.all)))
        return self.all[:number]


def execute(client: Any, code: str = "pass") -> None:
    """Run code by a blocking client, and wait for the reply."""
    reply = client.execute(code, reply=True, timeout=CALL_TIMEOUT_S)
    assert reply["content"]["status"] == "ok", reply
