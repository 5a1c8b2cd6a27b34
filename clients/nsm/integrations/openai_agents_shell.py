"""Executor for the shell tool of the OpenAI Agents SDK."""

# pyright: basic, reportMissingImports=false
# mypy: disable-error-code="misc, no-any-unimported, import-not-found"

from __future__ import annotations

from typing import TYPE_CHECKING

from agents import ShellCallOutcome, ShellCommandOutput, ShellResult

from nsm.integrations.sandboxes import AdapterSandbox, shell_words, texts_of

if TYPE_CHECKING:
    from typing import Self, Unpack

    from agents import ShellCommandRequest

    from nsm import SandboxSettings

FRAMEWORK = "openai-agents"


class NsmShellExecutor:
    """An executor for the SDK's `ShellTool`, whose commands run in a session of nsm.

    Example::

        async with NsmShellExecutor() as executor:
            agent = Agent(name="Worker", tools=[ShellTool(executor=executor)])

    It ends with `aclose`, or with the program.

    Args:
        socket_path: socket of the supervisor; None for the usual one.
        settings: as of `nsm.Client.sandbox`.
    """

    def __init__(
        self, *, socket_path: str | None = None, **settings: Unpack[SandboxSettings]
    ) -> None:
        self._sandbox = AdapterSandbox(FRAMEWORK, socket_path=socket_path, **settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End the session."""
        await self._sandbox.aclose()

    async def __call__(self, request: ShellCommandRequest) -> ShellResult:
        """Run the commands of a call, one after the other, until one takes too long."""
        action = request.data.action
        timeout_s = None if action.timeout_ms is None else action.timeout_ms / 1000
        output: list[ShellCommandOutput] = []
        for command in action.commands:
            argv = ["bash", *shell_words(command)]
            done = await self._sandbox.execute_async(argv, timeout_s=timeout_s)
            stdout, stderr = texts_of(done)
            outcome = ShellCallOutcome(type="exit", exit_code=done.exit_code)
            if done.timed_out:
                outcome = ShellCallOutcome(type="timeout")
            output.append(ShellCommandOutput(stdout, stderr, outcome, command))
            if done.timed_out:
                break
        return ShellResult(output, max_output_length=action.max_output_length)
