"""Sandboxes of nsm and of others, behind one small interface: make one, run code, end it.

What others need is looked for when it is asked for: E2B's package and the variables that lead it to
a server, or Docker.
"""

from __future__ import annotations

import importlib
import subprocess
from abc import ABC, abstractmethod
from typing import Any

import nsm

IMAGE = "python:3.13-slim"

SANDBOX_TIMEOUT_S = 600
"""Life of a sandbox of E2B; its default is five minutes."""


class ProviderMissingError(Exception):
    """The provider can't be had here; the message says why."""


class BenchSandbox(ABC):
    """A sandbox with a Python that keeps its variables, if the provider has such a thing."""

    @abstractmethod
    def run(self, code: str) -> str:
        """Run Python code; returns what it printed."""

    @abstractmethod
    def end(self) -> None:
        """End the sandbox."""


class Provider(ABC):
    """Maker of sandboxes.

    Attributes:
        keeps_variables: a call finds the variables of the one before. Without, it finds files.
    """

    keeps_variables = True

    @abstractmethod
    def create(self) -> BenchSandbox:
        """Make a sandbox, and return when it can be used."""


class NsmProvider(Provider):
    """Sandboxes of nsm.

    Args:
        socket_path: of the supervisor; None for the usual one.
    """

    def __init__(self, socket_path: str | None = None) -> None:
        self._socket_path = socket_path

    def create(self) -> BenchSandbox:
        """Make a session of its own, over a connection of its own."""
        return _NsmSandbox(nsm.Client(socket_path=self._socket_path, project=None))


class _NsmSandbox(BenchSandbox):
    def __init__(self, client: nsm.Client) -> None:
        self._client = client
        self._sandbox = client.sandbox()

    def run(self, code: str) -> str:
        result = self._sandbox.run(code)
        assert result.exit_code == 0, result
        return result.stdout

    def end(self) -> None:
        self._sandbox.close()
        self._client.close()


class E2bProvider(Provider):
    """Sandboxes of E2B, or of a server that speaks to its package, such as ``nsm e2b serve``.

    Raises:
        ProviderMissingError: the package is not installed.
    """

    def __init__(self) -> None:
        try:
            package = importlib.import_module("e2b_code_interpreter")  # most runs do without
        except ImportError:
            raise ProviderMissingError(
                "install e2b-code-interpreter, and set E2B_API_KEY (docs/how-to/integrations.md)"
            ) from None
        self._kind: Any = package.Sandbox

    def create(self) -> BenchSandbox:
        """Make a sandbox by the package's own `create`."""
        return _E2bSandbox(self._kind.create(timeout=SANDBOX_TIMEOUT_S))


class _E2bSandbox(BenchSandbox):
    def __init__(self, sandbox: Any) -> None:
        self._sandbox = sandbox

    def run(self, code: str) -> str:
        execution = self._sandbox.run_code(code)
        assert execution.error is None, execution.error
        return "".join(execution.logs.stdout)

    def end(self) -> None:
        self._sandbox.kill()


class DockerProvider(Provider):
    """Containers of Docker without a network. Each call is a Python of its own.

    Args:
        image: has `python3`, and is here already.

    Raises:
        ProviderMissingError: there is no Docker, or not this image.
    """

    keeps_variables = False

    def __init__(self, image: str = IMAGE) -> None:
        self._image = image
        try:
            _docker("image", "inspect", image)
        except (OSError, subprocess.CalledProcessError) as error:
            words = getattr(error, "stderr", "") or str(error)
            raise ProviderMissingError(words.strip().splitlines()[-1]) from None

    def create(self) -> BenchSandbox:
        """Start a container that waits."""
        command = ("sleep", str(SANDBOX_TIMEOUT_S))
        started = _docker("run", "--detach", "--rm", "--network=none", self._image, *command)
        return _Container(started.strip())


class _Container(BenchSandbox):
    def __init__(self, name: str) -> None:
        self._name = name

    def run(self, code: str) -> str:
        return _docker("exec", self._name, "python3", "-c", code)

    def end(self) -> None:
        _docker("rm", "--force", self._name)


def _docker(*arguments: str) -> str:
    done = subprocess.run(("docker", *arguments), capture_output=True, text=True, check=True)
    return done.stdout
