"""Sandbox of inspect_ai: `sandbox="nsm"` of a task, or `--sandbox nsm`.

inspect_ai finds it by the entry point of nsm's package.
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from inspect_ai import util
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict, Field

from nsm.integrations.sandboxes import AdapterSandbox
from nsm.integrations.settings import SandboxModel
from nsm.wire.errors import JobError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import ClassVar

UserError = getattr(util, "SandboxUserUnsupportedError", RuntimeError)
"""Error for a user that a sandbox lacks; releases of inspect_ai before 0.3.280 have none."""


class SampleSandbox(AdapterSandbox):
    """Sandbox of a sample. A program that can't be executed is an error."""

    cannot_start: ClassVar[Mapping[str, int]] = {"ENOENT": 127}


class NsmConfig(SandboxModel):
    """Settings of a task's sandboxes: `("nsm", NsmConfig(...))`, as of `nsm.Client.sandbox`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    env: str = "python"
    project_mode: str | None = None
    fresh: bool = Field(default=False, description="As of `AdapterSandbox`, for all samples.")


@sandboxenv(name="nsm")
class NsmSandboxEnvironment(SandboxEnvironment):
    """Session of nsm that a sample has.

    Attributes:
        sandbox: the session.
    """

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Any, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Make the session of a sample.

        Raises:
            ValueError: the configuration is not an `NsmConfig`.
            NsmError: the session can't be made.
        """
        del metadata
        if config is not None and not isinstance(config, NsmConfig):
            raise ValueError(f"the sandbox nsm takes an NsmConfig, not {config!r:.80}")
        wanted = config or NsmConfig()
        labels = {"task": task_name[:60]}
        sandbox = SampleSandbox(
            "inspect_ai",
            fresh=wanted.fresh,
            env=wanted.env,
            labels=labels,
            **wanted.of_sandbox(),
        )
        await sandbox.aopen()
        return {"default": cls(sandbox)}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: Any,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """End the session of a sample."""
        del task_name, config, interrupted
        for environment in environments.values():
            await environment.as_type(cls).sandbox.aclose()

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """Read a configuration from a log."""
        return NsmConfig(**config)

    def __init__(self, sandbox: SampleSandbox) -> None:
        super().__init__()
        self.sandbox = sandbox

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002  # the framework's name
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,  # noqa: ASYNC109  # likewise
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a program in the session.

        Raises:
            RuntimeError: a user is named: a session has one only.
            TimeoutError: the time limit was over; the program has been stopped.
            PermissionError: the program can't be executed.
            OutputLimitExceededError: it printed more than inspect_ai takes.
        """
        del timeout_retry, concurrency  # nothing is lost on the way to a session
        if user is not None:
            raise UserError(f"a session of nsm has one user; it cannot execute as {user!r}")
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            done = await self.sandbox.execute_async(
                cmd,
                stdin=input.encode() if isinstance(input, str) else input or b"",
                cwd=cwd,
                environ=env,
                timeout_s=timeout,
                max_bytes=2 * limit + 1,
            )
        except JobError as error:
            if error.data.get("errno") in {"EACCES", "ENOEXEC"}:
                raise PermissionError(errno.EACCES, str(error)) from error
            raise
        if done.timed_out:
            raise TimeoutError(f"the program was stopped after {done.duration_s:.0f} s")
        streams = [each.decode(errors="replace") for each in (done.stdout, done.stderr)]
        for data, text in zip((done.stdout, done.stderr), streams, strict=True):
            if len(data) > limit:
                shown = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR
                raise OutputLimitExceededError(shown, text[:limit])
        if done.missing:  # a fresh interpreter keeps less
            raise OutputLimitExceededError(f"{len(done.output):,} bytes", done.output.decode())
        return ExecResult(done.exit_code == 0, done.exit_code, *streams)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file, with the directories that are missing.

        Raises:
            OSError: it can't be written; of the type that Python has for that.
        """
        data = contents.encode() if isinstance(contents, str) else contents
        await self.sandbox.ado(self.sandbox.write, file, data)

    async def read_file(self, file: str, text: bool = True) -> Any:
        """Read a file, as text or bytes.

        Raises:
            OSError: it can't be read; of the type that Python has for that.
            OutputLimitExceededError: it is larger than inspect_ai takes.
            UnicodeDecodeError: it is no UTF-8 text.
        """
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        data = await self.sandbox.ado(
            self.sandbox.files, lambda files: files.read(file, length=limit + 1)
        )
        if len(data) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return data.decode() if text else data

    def default_polling_interval(self) -> float:
        """Seconds between looks at what a tool in the sandbox asks for."""
        return 0.2
