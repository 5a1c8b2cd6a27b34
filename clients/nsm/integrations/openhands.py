"""Workspace of OpenHands: its agent server, with the agent and its tools, in a session of nsm.

Example::

    from openhands.sdk import Conversation
    from nsm.integrations.openhands import NsmAgentServer

    with NsmAgentServer(network="api.anthropic.com") as workspace:
        conversation = Conversation(agent=agent, workspace=workspace)
        conversation.send_message("Count the words of notes.txt")
        conversation.run()
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import secrets
import time
import urllib.error
import urllib.request
from functools import partial
from typing import TYPE_CHECKING, Any

from openhands.sdk.workspace import RemoteWorkspace
from pydantic import Field, PrivateAttr

from nsm.integrations.sandboxes import AdapterSandbox
from nsm.integrations.settings import SandboxModel
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from openhands.sdk.workspace.models import CommandResult

    from nsm import AsyncJob

PORT = 8000
"""Port of the agent server in its session, which has a loopback of its own."""

PROJECT = "/project"

_ASK_S = 0.2
"""Pause between questions whether the server is ready."""

_TAIL_BYTES = 4096
"""Output to show of a server that has ended."""


class NsmAgentServer(RemoteWorkspace, SandboxModel):
    """An agent server of OpenHands in a session of nsm, which is made at once.

    The agent runs in the server. So the session needs the host of your model in `network`, and
    gets the key that you give `LLM`. The session ends with `cleanup`, with the block, with
    the program, or by its idle time.

    Raises:
        RuntimeError: the session can't be made, or the server does not start in it.
    """

    working_dir: str = Field(default="", description="Directory of the agent's tools.")
    host: str = Field(default="", description="Address of the server; nsm chooses it.")
    env: str = Field(
        default="openhands",
        description="Environment that has the packages openhands-agent-server and -tools.",
    )
    name: str | None = Field(default=None, description="Name of a session that stays.")
    environ: dict[str, str] = Field(default_factory=dict, description="Variables of the server.")
    server_arguments: list[str] = Field(default_factory=list, description="More arguments of it.")
    startup_timeout_s: float = Field(default=120.0, gt=0, description="Time for its start.")

    _sandbox: AdapterSandbox | None = PrivateAttr(default=None)

    def model_post_init(self, context: Any) -> None:
        """Start the server, and wait until it answers."""
        if not self.working_dir:
            self.working_dir = PROJECT if self.project else "/workspace"
        self._sandbox = AdapterSandbox(
            "openhands", env=self.env, name=self.name, **self.of_sandbox()
        )
        try:
            job = self._start(self._sandbox)
            self._wait(self._sandbox, job)
        except (NsmError, OSError) as error:
            self.cleanup()
            raise RuntimeError(f"nsm: {error}") from error
        except BaseException:
            self.cleanup()
            raise
        super().model_post_init(context)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """End the session."""
        super().__exit__(exc_type, exc_val, exc_tb)
        self.cleanup()

    def cleanup(self) -> None:
        """End the session. Another time does nothing."""
        self.reset_client()
        if self._sandbox is not None:
            self._sandbox.close()

    def execute_command(
        self, command: str, cwd: str | Path | None = None, timeout: float = 30.0
    ) -> CommandResult:
        """Run a command, in the workspace's directory if no other is named."""
        return super().execute_command(command, cwd or self.working_dir, timeout)

    @property
    def session(self) -> str | None:
        """Id of the session, as in `nsm ps`."""
        return self._sandbox.session if self._sandbox is not None else None

    def _start(self, sandbox: AdapterSandbox) -> AsyncJob:
        self.api_key = secrets.token_urlsafe(32)  # others can connect to the loopback, too
        environ = {
            "OH_SECRET_KEY": secrets.token_urlsafe(32),
            **self.environ,
            "OH_SESSION_API_KEYS_0": self.api_key,
        }
        argv = ["python3", "-m", "openhands.agent_server", "--host", "127.0.0.1"]
        argv += ["--port", str(PORT), *self.server_arguments]
        job = sandbox.do(sandbox.start, argv, environ=environ)
        row = sandbox.do(sandbox.open_port, PORT)
        self.host = f"http://{row.address}"
        return job

    def _wait(self, sandbox: AdapterSandbox, job: AsyncJob) -> None:
        """Wait until the server answers.

        Raises:
            RuntimeError: it has ended, or does not answer in time.
        """
        late = time.monotonic() + self.startup_timeout_s
        while time.monotonic() < late:
            try:
                with urllib.request.urlopen(f"{self.host}/health", timeout=5):  # noqa: S310  # ours
                    return
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                pass
            if not sandbox.do(partial(job.wait, _ASK_S)).running:
                done = sandbox.do(job.collect)
                said = (done.stdout + done.stderr)[-_TAIL_BYTES:].decode(errors="replace").strip()
                raise RuntimeError(
                    f"nsm: the agent server ended in environment {self.env!r}: {said}\n"
                    "`nsm env add openhands --pip 'openhands-agent-server openhands-tools'` makes "
                    "an environment that has it; it needs Python 3.12 or newer."
                )
        raise RuntimeError(
            f"nsm: the agent server did not answer within {self.startup_timeout_s:g} s; "
            "raise `startup_timeout_s`"
        )
