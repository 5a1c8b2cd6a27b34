"""Executor of smolagents: the code of a `CodeAgent` runs in a session of nsm.

Example::

    from smolagents import CodeAgent
    from nsm.integrations.smolagents import NsmExecutor

    with NsmExecutor() as executor, CodeAgent(tools=[], model=model, executor=executor) as agent:
        agent.run("How many primes are below 1000?")
"""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import base64
import io
import re
from typing import TYPE_CHECKING, Any

import PIL.Image
from smolagents.local_python_executor import CodeOutput
from smolagents.monitoring import AgentLogger, LogLevel
from smolagents.remote_executors import RemotePythonExecutor
from smolagents.serialization import SafeSerializer
from smolagents.tools import get_tools_definition_code
from smolagents.utils import AgentError

from nsm import SharedSandbox
from nsm.wire.errors import NsmError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self, Unpack

    from nsm import RunResult, SandboxSettings

OWNER = "smolagents"

FINAL_ANSWER = re.compile(r"^(?:[\w.<>]*\.)?FinalAnswerException: ((?:safe|pickle):.*)$")
"""Last line of the traceback by which a patched `final_answer` ends the code."""

OPTIONAL_IMPORT = re.compile(r"^import (PIL|numpy)$", re.MULTILINE)
GUARDED_IMPORT = r"try:\n    import \1\nexcept ImportError:\n    pass"
"""Import by the patched `final_answer`, which does without where they are missing."""

DISTRIBUTIONS: dict[str, str] = {"PIL": "pillow"}

FIND_MISSING = """
def _nsm_missing(names):
    import importlib.metadata, importlib.util, re
    missing = []
    for name in names:
        plain = re.split(r"[^\\w.-]", name.strip(), maxsplit=1)[0]
        try:
            importlib.metadata.version(plain)
        except importlib.metadata.PackageNotFoundError:
            if importlib.util.find_spec(plain.replace("-", "_").split(".")[0]) is None:
                missing.append(name)
    return missing
print(*_nsm_missing({names!r}), sep="\\n")
del _nsm_missing
"""


class NsmExecutor(RemotePythonExecutor):
    """Executor that runs code in a session of nsm, which it makes at once.

    Attributes:
        sandbox: the session.
    """

    def __init__(
        self,
        additional_imports: Sequence[str] = (),
        logger: Any = None,
        *,
        allow_pickle: bool = False,
        timeout_s: float | None = None,
        fresh: bool = False,
        **settings: Unpack[SandboxSettings],
    ) -> None:
        """Make the session.

        Args:
            additional_imports: packages that the environment must have; none is installed.
            logger: of the agent; None for one that prints errors only.
            allow_pickle: as in smolagents: the session's pickles are loaded **here**, so its code
                runs with your rights.
            timeout_s: limit of each step; None for that of the environment.
            fresh: run each step in a fresh interpreter of the session, which has the tools and
                variables that were sent, and nothing of other steps.
            settings: as in `nsm.Client.sandbox`; without `project`, no project is shown.

        Raises:
            NsmError: the session can't be made.
            AgentError: the environment lacks a package.
        """
        super().__init__(
            list(additional_imports), logger or AgentLogger(level=LogLevel.ERROR), allow_pickle
        )
        self._timeout_s = timeout_s
        self._fresh = fresh
        self._tools_code = ""
        self._variables: dict[str, Any] = {}
        self._forgotten = False
        self.sandbox = SharedSandbox(owner=OWNER, **settings).open()
        try:
            self.installed_packages = self.install_packages(list(additional_imports))
        except BaseException:
            self.cleanup()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    def cleanup(self) -> None:
        """End the session. Another time does nothing."""
        self.sandbox.close()

    def send_tools(self, tools: dict[str, Any]) -> None:
        """Define tools in the session, as functions that code calls.

        Raises:
            AgentError: the environment lacks a package that a tool needs.
        """
        final_answer = tools.get("final_answer")
        # An agent sends its tools for each task; smolagents' patch would call itself.
        if final_answer is not None and type(final_answer).__name__ != "_FinalAnswerTool":
            self._patch_final_answer_with_exception(final_answer)
        asked: set[str] = {
            str(DISTRIBUTIONS.get(package, package))
            for name, tool in tools.items()
            if name != "final_answer"  # which names pillow and numpy, and works without
            for package in tool.to_dict()["requirements"]
        }
        missing: set[str] = asked.difference(self.installed_packages, ["smolagents"])
        self.installed_packages += self.install_packages(sorted(missing))
        code = OPTIONAL_IMPORT.sub(GUARDED_IMPORT, get_tools_definition_code(tools))
        if code:
            self._tools_code = code
            self.run_code_raise_errors(code)

    def send_variables(self, variables: dict[str, Any]) -> None:
        """Set variables in the session."""
        super().send_variables(variables)
        self._variables.update(variables)

    def install_packages(self, additional_imports: list[str]) -> list[str]:
        """Check that packages are there: a session installs none.

        Raises:
            AgentError: some are not.
        """
        if additional_imports:
            found = self._run(FIND_MISSING.format(names=additional_imports))
            if missing := found.stdout.split():
                packages = " ".join(missing)
                message = (
                    f"the environment {self.sandbox.env!r} of nsm has no package {packages}. "
                    f"Make one that has, and choose it: `nsm env add agents --pip '{packages}'`, "
                    "then NsmExecutor(env='agents')."
                )
                raise AgentError(message, self.logger)
        return additional_imports

    def run_code_raise_errors(self, code: str) -> CodeOutput:
        """Run a step in the session.

        Raises:
            AgentError: the code failed, or could not run.
        """
        if self._fresh:
            code = self._definitions() + code
        elif self._forgotten:
            self._forgotten = False
            if self._tools_code:
                self._run(self._tools_code)
            super().send_variables(self._variables)
        result = self._run(code)
        self._forgotten = result.interpreter_restarted
        logs = result.stdout
        if result.exit_code == 0:
            return CodeOutput(
                output=_value(result), logs=logs + result.stderr, is_final_answer=False
            )
        if (answer := FINAL_ANSWER.match(self._last_line(result))) is not None:
            value = self._deserialize_final_answer(answer[1], self.allow_pickle)
            return CodeOutput(output=value, logs=logs, is_final_answer=True)
        reasons = [result.stderr.rstrip("\n"), *result.notes]
        if result.timed_out:
            reasons.append(f"The time limit of {result.timeout_s:g} s was over.")
        if result.interpreter_restarted:
            reasons.append(f"Variables are lost: {result.restart_reason}.")
        message = "\n".join([logs, "Executing code yielded an error:", *filter(None, reasons)])
        raise AgentError(message, self.logger)

    def _definitions(self) -> str:
        """Code of tools and variables, in one line, as those of a traceback are counted."""
        code = self._tools_code
        if self._variables:
            values = SafeSerializer.dumps(self._variables, allow_pickle=self.allow_pickle)
            code += f"\n{SafeSerializer.get_deserializer_code(self.allow_pickle)}"
            code += f"\nglobals().update(_deserialize({values!r}))"
        return f"exec({code!r})\n" if code else ""

    def _run(self, code: str) -> RunResult:
        try:
            return self.sandbox.call(
                lambda box: box.run(code, timeout_s=self._timeout_s, fresh=self._fresh)
            )
        except NsmError as error:
            raise AgentError(f"nsm could not run the code: {error}", self.logger) from error

    def _last_line(self, result: RunResult) -> str:
        """Return the last line of standard error, from its file where it is too long."""
        text = result.stderr
        truncation = result.truncated.get("stderr")
        if truncation is not None and truncation.file is not None:
            path = truncation.file
            try:
                whole = self.sandbox.call(lambda box: box.files.read(path))
            except NsmError as error:
                raise AgentError(f"nsm could not read the answer: {error}", self.logger) from error
            text = whole.decode(errors="replace")
        return text.rstrip("\n").rpartition("\n")[2]


def _value(result: RunResult) -> Any:
    """Return what the last expression showed: an image, or text; None if it showed nothing."""
    if not result.displays:
        return None
    shown = result.displays[-1]
    for kind in ("image/jpeg", "image/png"):
        if isinstance(data := shown.get(kind), str):
            return PIL.Image.open(io.BytesIO(base64.b64decode(data)))
    for kind in ("application/json", "text/html", "text/latex", "text/markdown", "image/svg+xml"):
        if kind in shown:
            return shown[kind]
    return shown.get("text/plain")
