"""Shells of SWE-ReX: Bash in a terminal in a session of nsm."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import codecs
import math
import os
import re
import time
from typing import TYPE_CHECKING

from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    NoExitCodeError,
    NonZeroExitCodeError,
)
from swerex.runtime.abstract import BashObservation

from nsm.integrations.sandboxes import READ_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from swerex.runtime.abstract import BashAction, BashInterruptAction

    from nsm import AsyncJob
    from nsm.integrations.sandboxes import AdapterSandbox

START_TIMEOUT_S = 60.0
"""Time that Bash may take to start, on a machine that is busy."""

_CONTROL = re.compile(r"\x1B[@-_][0-?]*[ -/]*[@-~]")


async def check_syntax(sandbox: AdapterSandbox, command: str) -> None:
    """Check a command's syntax, in the session.

    Raises:
        BashIncorrectSyntaxError: Bash does not understand it.
    """
    done = await sandbox.execute_async(["bash", "-n"], stdin=command.encode())
    if done.exit_code:
        stderr = done.stderr.decode(errors="backslashreplace")
        raise BashIncorrectSyntaxError(
            f"Bash does not understand the command {command!r}:\n{stderr}",
            extra_info={"bash_stdout": "", "bash_stderr": stderr},
        )


class BashShell:
    """A Bash in a terminal, which keeps its state from command to command.

    Its prompt is a random word, so no output looks like one by accident, the number of the command
    that has ended, so a late prompt is not taken for the next one, and its exit code.
    """

    def __init__(self, sandbox: AdapterSandbox, job: AsyncJob, word: str) -> None:
        self._sandbox = sandbox
        self._job = job
        self._word = word
        self._number = 0
        # One for all commands: that of a command which is interrupted stays.
        self._script = f"/tmp/nsm-{os.urandom(8).hex()}.sh"  # noqa: S108  # of the session
        self._prompt = f"{word}\\d+-(\\d*):"
        self._buffer = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")

    @classmethod
    async def start(cls, sandbox: AdapterSandbox) -> Self:
        """Start one, and wait for its prompt."""
        word = f"nsm-{os.urandom(8).hex()}-"
        job = await sandbox.ado(
            sandbox.start, ["bash", "--norc", "--noediting"], tty=(50, 200), environ={"PS1": ""}
        )
        shell = cls(sandbox, job, word)
        await shell._send(f"stty -echo; unset HISTFILE; {shell._set_prompt()}\n")
        await shell._expect([shell._prompt], START_TIMEOUT_S, "starting")
        return shell

    def close(self) -> None:
        """End it, with all that runs in it."""
        self._sandbox.submit(self._sandbox.stop, self._job)

    async def run(self, action: BashAction) -> BashObservation:
        """Run a command, which may have several lines, to its end."""
        prompt = await self._type(action.command)
        found = await self._expect([*action.expect, prompt], action.timeout, action.command)
        output = self._plain(found.before)
        if action.check == "ignore" or found.index < len(action.expect):
            return BashObservation(output=output, exit_code=None, expect_string=found.pattern)
        exit_code = int(found.match[1] or 0)
        if action.check == "raise" and exit_code:
            what = f"{action.error_msg}: " if action.error_msg else ""
            raise NonZeroExitCodeError(
                f"{what}Command {action.command!r} failed with exit code {exit_code}. "
                f"Here is the output:\n{output!r}"
            )
        return BashObservation(output=output, exit_code=exit_code, expect_string=found.pattern)

    async def run_interactive(self, action: BashAction) -> BashObservation:
        """Type a line for a program that reads it, and wait for what is expected, or the prompt."""
        await self._send(action.command + "\n")
        found = await self._expect([*action.expect, self._prompt], action.timeout, action.command)
        output = self._plain(found.before)
        if action.is_interactive_quit:
            await self._send("stty -echo\n")
            await self._expect([self._prompt], START_TIMEOUT_S, action.command)
        else:  # programs that read lines show them
            output = output.lstrip().removeprefix(action.command).strip()
        return BashObservation(output=output, exit_code=0, expect_string=found.pattern)

    async def interrupt(self, action: BashInterruptAction) -> BashObservation:
        """Interrupt what runs, as Ctrl-C does; kill it, if that has no effect.

        Raises:
            CommandTimeoutError: the prompt does not come back.
        """
        patterns = [*action.expect, self._prompt]
        output = ""
        # `jobs` takes Bash's notice of the end, which would stand in the next command's output.
        kill = "kill -9 %1; wait -f %1; jobs >/dev/null\n"
        for keys in ["\x03"] * action.n_retry + ["\x1a", kill]:
            await self._send(keys)
            try:
                found = await self._expect(patterns, action.timeout, "interrupting")
            except CommandTimeoutError:
                continue
            output += self._plain(found.before)
            if keys != "\x1a":
                return BashObservation(
                    output=output.strip(), exit_code=0, expect_string=found.pattern
                )
        raise CommandTimeoutError("what runs in the session could not be interrupted")

    async def _type(self, command: str) -> str:
        """Have Bash run a command from a file, so that no program reads its lines.

        Returns:
            The prompt that tells its end, as a regular expression.
        """
        box, script = self._sandbox, self._script
        await box.ado(box.write, script, command.encode("utf-8", "surrogateescape"))
        self._number += 1
        await self._send(f". {script}; NSM_EXIT=$?; rm -f {script}; {self._set_prompt()}\n")
        return f"{self._word}{self._number}-(\\d*):"

    def _set_prompt(self) -> str:
        # The word is cut in two, since a terminal may show what is typed.
        begin, rest = self._word[:8], self._word[8:]
        return f"PS1='{begin}''{rest}{self._number}-${{NSM_EXIT}}:' PS2= PS0="

    def _plain(self, text: str) -> str:
        """Text without the terminal's controls, and without late prompts."""
        return re.sub(self._prompt, "", _CONTROL.sub("", text).replace("\r\n", "\n"))

    async def _send(self, text: str) -> None:
        data = text.encode("utf-8", "surrogateescape")
        await self._sandbox.ado(self._job.write, data)

    async def _expect(self, patterns: Sequence[str], timeout_s: float | None, doing: str) -> _Found:
        """Wait until the output has one of the patterns.

        Raises:
            CommandTimeoutError: it takes too long.
            NoExitCodeError: Bash has ended.
        """
        end = math.inf if timeout_s is None else time.monotonic() + timeout_s
        compiled = [re.compile(pattern, re.DOTALL) for pattern in patterns]
        while True:
            found = [
                (match.start(), index, match)
                for index, each in enumerate(compiled)
                if (match := each.search(self._buffer))
            ]
            if found:
                start, index, match = min(found, key=lambda each: each[:2])
                before, self._buffer = self._buffer[:start], self._buffer[match.end() :]
                return _Found(index, patterns[index], match, before)
            left_s = end - time.monotonic()
            if left_s <= 0:
                raise CommandTimeoutError(
                    f"timeout after {timeout_s} seconds while running command {doing!r}"
                )
            output = await self._sandbox.ado(self._job.read, wait_s=min(READ_S, left_s))
            self._buffer += self._decoder.decode(output.data)
            if output.is_last:
                raise NoExitCodeError(f"the shell has ended while running command {doing!r}")


class _Found:
    """A pattern that was found in the output, and what was before it."""

    def __init__(self, index: int, pattern: str, match: re.Match[str], before: str) -> None:
        self.index, self.pattern, self.match, self.before = index, pattern, match, before
