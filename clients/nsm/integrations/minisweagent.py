"""Environment of mini-swe-agent in a session of nsm.

On the command line: ``mini --environment-class nsm.integrations.minisweagent.NsmEnvironment -c
mini.yaml -c environment.project=. -c environment.name=fix``.

Example::

    from minisweagent.agents.default import DefaultAgent
    from nsm.integrations.minisweagent import NsmEnvironment

    agent = DefaultAgent(model, NsmEnvironment(project="/home/me/project", name="fix"))
    agent.run("Make the tests pass")

Commands change a copy of the project. The session has a name, so it stays after the run: ``nsm diff
fix`` shows the changes, ``nsm apply fix`` writes them to the project, and ``nsm kill fix`` ends the
session. Without a name the copy ends with the program.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Any

from minisweagent.exceptions import Submitted
from minisweagent.utils.serialize import recursive_merge
from pydantic import ConfigDict, Field

from nsm.integrations.sandboxes import AdapterSandbox, left_out, merged_shell
from nsm.integrations.settings import SandboxModel
from nsm.wire.errors import BadRequestError, JobError

if TYPE_CHECKING:
    from typing import Self

SUBMIT = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""First line of the output of a command that ends the task, as in the framework's environments."""


class NsmEnvironmentConfig(SandboxModel):
    """Configuration of the environment.

    Attributes:
        cwd: working directory of commands; empty for the project, or the session's workspace.
        env: variables of commands.
        timeout: time limit of a command, seconds.
        name: of the session, which then outlives the program; None for one that ends with it.
    """

    model_config = ConfigDict(extra="forbid")

    cwd: str = ""
    env: dict[str, str] = Field(default_factory=dict)
    timeout: float = 30
    name: str | None = None


class NsmEnvironment:
    """An environment in a session of nsm, which is made for the first command.

    It ends with `cleanup`, with this object or the program, or by its idle time.
    """

    def __init__(self, *, config_class: type = NsmEnvironmentConfig, **kwargs: Any) -> None:
        self.config = config_class(**kwargs)
        self._sandbox = AdapterSandbox(
            "mini-swe-agent", name=self.config.name, **self.config.of_sandbox()
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """End the session."""
        self._sandbox.close()

    def execute(
        self, action: dict[str, Any], cwd: str = "", *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Run a command in Bash.

        Raises:
            Submitted: it has ended the task.
            NsmError: the session has ended, or can't be made.
        """
        timeout_s = timeout or self.config.timeout
        place = cwd or self.config.cwd or ("/project" if self.config.project else None)
        try:
            done = self._sandbox.execute(
                merged_shell(action.get("command", "")),
                cwd=place,
                environ=self.config.env,
                timeout_s=timeout_s,
            )
        except (BadRequestError, JobError) as error:  # the model can do something about it
            return _failed("", error)
        text = done.stdout.decode(errors="replace") + left_out(done.missing)
        if done.timed_out:
            return _failed(text, TimeoutError(f"the command was stopped after {timeout_s:g} s"))
        _check_submitted(text, done.exit_code)
        return {"output": text, "returncode": done.exit_code, "exception_info": ""}

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Values for prompts. The session has the host's kernel."""
        system = platform.uname()._asdict() | {"node": "nsm"}
        merged: dict[str, Any] = recursive_merge(self.config.model_dump(), system, kwargs)
        return merged

    def serialize(self) -> dict[str, Any]:
        """The configuration, for trajectories."""
        config = {
            "environment": self.config.model_dump(mode="json"),
            "environment_type": f"{type(self).__module__}.{type(self).__name__}",
        }
        return {"info": {"config": config}}


def _failed(output: str, error: Exception) -> dict[str, Any]:
    return {
        "output": output,
        "returncode": -1,
        "exception_info": f"An error occurred while executing the command: {error}",
        "extra": {"exception_type": type(error).__name__, "exception": str(error)},
    }


def _check_submitted(output: str, exit_code: int) -> None:
    lines = output.lstrip().splitlines(keepends=True)
    if exit_code or not lines or lines[0].strip() != SUBMIT:
        return
    submission = "".join(lines[1:])
    extra = {"exit_status": "Submitted", "submission": submission}
    raise Submitted({"role": "exit", "content": submission, "extra": extra})
