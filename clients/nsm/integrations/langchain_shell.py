"""Execution policy of LangChain's shell middleware: its shell runs in a session of nsm.

Example::

    from langchain.agents import create_agent
    from langchain.agents.middleware import ShellToolMiddleware
    from nsm.integrations.langchain_shell import NsmExecutionPolicy

    with NsmExecutionPolicy() as policy:
        agent = create_agent(model, middleware=[ShellToolMiddleware(execution_policy=policy)])
        agent.invoke({"messages": [("user", "Count the words of notes.txt")]})
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio
from langchain.agents.middleware import shell_tool
from langchain.agents.middleware.shell_tool import BaseExecutionPolicy

from nsm.integrations.sandboxes import GONE, AdapterSandbox
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

    from nsm import AsyncJob

PROJECT = "/project"


class NsmExecutionPolicy(BaseExecutionPolicy):
    """Starts the middleware's shells in sessions of nsm.

    Each directory that the middleware has for its shell (`workspace_root`) has a session of its
    own, in which a shell that is started again finds its files. Where the middleware makes the
    directory itself, for one run of the agent, the session sees no directory of the host. Else
    the directory is the session's project, and commands change a copy of it.

    Sessions end with `close`, with this object and the program, or by their idle time; that of a
    directory that is gone ends when the next shell is started.
    """

    def __init__(
        self, *, socket_path: str | None = None, project_mode: str = "overlay", **settings: Any
    ) -> None:
        """Describe the sessions.

        Args:
            socket_path: socket of the supervisor; None for the usual one.
            project_mode: of `workspace_root`: ``overlay``, or ``readonly``.
            settings: LangChain's own (`command_timeout`, `max_output_lines`, ...), and those of
                `nsm.Client.sandbox` but for `project`.

        Raises:
            ValueError: LangChain refuses one of its settings.
            TypeError: there is no such setting.
        """
        names = {field.name for field in dataclasses.fields(BaseExecutionPolicy)}
        super().__init__(**{name: settings.pop(name) for name in names & set(settings)})
        if "project" in settings:
            raise TypeError("nsm: the project is the middleware's workspace_root: name it there")
        self._socket_path = socket_path
        self._project_mode = project_mode
        self._settings = settings
        self._sandboxes: dict[Path, AdapterSandbox] = {}
        self._lock = threading.Lock()
        self._make(None)  # refuses unknown settings

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sessions."""
        with self._lock:
            sandboxes, self._sandboxes = [*self._sandboxes.values()], {}
        for each in sandboxes:
            each.close()

    def spawn(
        self, *, workspace: Path, env: Mapping[str, str], command: Sequence[str]
    ) -> subprocess.Popen[str]:
        """Start a shell in the session of a directory.

        Returns:
            A program that is connected to the shell. If it ends, or is killed, the shell and all
            that it has started end.

        Raises:
            RuntimeError: the session can't be made, or the shell can't be started.
        """
        project = _project(workspace)
        settings: dict[str, Any] = {"environ": env, "cwd": PROJECT if project else None}
        try:
            box, job = self._start(workspace, project, command, settings)
        except (NsmError, OSError) as error:
            raise RuntimeError(f"nsm: {error}") from error
        try:
            process = self._connect(box, job)
            watched = os.pidfd_open(process.pid)
        except BaseException:
            box.submit(box.stop, job)
            raise
        box.submit(_stop_after, watched, box, job)
        return process

    def _start(
        self,
        workspace: Path,
        project: str | None,
        command: Sequence[str],
        settings: dict[str, Any],
    ) -> tuple[AdapterSandbox, AsyncJob]:
        with self._lock:
            for path in [path for path in self._sandboxes if not path.exists()]:
                old = self._sandboxes.pop(path)
                old.close()
            known = self._sandboxes.get(workspace)
            if known is not None:
                try:
                    return known, known.do(known.start, command, stdin=True, **settings)
                except GONE:
                    known.close()
            box = self._sandboxes[workspace] = self._make(project)
            return box, box.do(box.start, command, stdin=True, **settings)

    def _make(self, project: str | None) -> AdapterSandbox:
        mode = self._project_mode if project else None
        settings = {**self._settings, "project": project, "project_mode": mode}
        return AdapterSandbox("langchain", socket_path=self._socket_path, **settings)

    def _connect(self, box: AdapterSandbox, job: AsyncJob) -> subprocess.Popen[str]:
        """Start a program whose input and output are the shell's."""
        environ = dict(os.environ)
        if self._socket_path is not None:
            environ["NSM_SOCKET"] = self._socket_path
        assert box.session is not None, "a program was started in it"
        # As LangChain starts its own: its threads read lines of text.
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "nsm.cli", "attach", box.session, "--job", job.id],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            bufsize=1,
            cwd="/",
            env=environ,
            start_new_session=True,
        )


def _project(workspace: Path) -> str | None:
    """Directory to show: none if the middleware has made it and removes it after the run."""
    ours = not workspace.name.startswith(shell_tool.SHELL_TEMP_PREFIX)
    return os.path.abspath(workspace) if ours else None


async def _stop_after(pidfd: int, box: AdapterSandbox, job: AsyncJob) -> None:
    """Stop a shell once the program that is connected to it has ended."""
    try:
        await trio.lowlevel.wait_readable(pidfd)
    finally:
        os.close(pidfd)
    await box.stop(job)
