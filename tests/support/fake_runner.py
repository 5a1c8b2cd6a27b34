"""A `RunService` without jails: the test decides what becomes of each execution."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import trio

from nsm.wire.errors import NsmError
from nsmd.manager.run_service import RunService
from nsmd.model.values import (
    ClientIdentity,
    Environment,
    Outcome,
    Output,
    OutputSink,
    ProjectMount,
    RunOutcome,
    RunRequest,
    Sources,
)

ENVIRONMENTS = (
    Environment(name="python", interpreter="python", description="Python 3.11.2"),
    Environment(name="bash", interpreter="bash", description="GNU bash 5.2.15"),
    Environment(name="node", interpreter="node", description="Node.js 20.11.1"),
)


def a_result(
    outcome: Outcome | None = None,
    *,
    env: str = "python",
    session: str | None = None,
    created: bool = False,
    replaced: str | None = None,
    waited_s: float = 0.0,
    timeout_s: float = 30.0,
    clamped_from_s: float | None = None,
    notes: tuple[str, ...] = (),
    longest_s: float | None = None,
    keeps_state: bool = False,
) -> RunOutcome:
    """A result with every field that a test does not care about."""
    return RunOutcome(
        outcome=outcome or Outcome(stdout="", stderr="", exit_code=0),
        execution_id="e1",
        env=env,
        session_id="s1",
        session_name=session,
        created=created,
        replaced=replaced,
        waited_s=waited_s,
        timeout_s=timeout_s,
        clamped_from_s=clamped_from_s,
        denials=notes,
        longest_s=longest_s,
        keeps_state=keeps_state,
    )


class FakeExecution:
    """Submitted execution, and the requests made of it since."""

    def __init__(self, request: RunRequest, on_output: OutputSink | None) -> None:
        self.request = request
        self.on_output = on_output
        self.interrupted = trio.Event()
        self.abandoned = trio.Event()
        self._answered = trio.Event()
        self._answer: RunOutcome | NsmError | None = None

    async def wait(self) -> RunOutcome:
        await self._answered.wait()
        if isinstance(self._answer, NsmError):
            raise self._answer
        assert self._answer is not None
        return self._answer

    def interrupt(self) -> None:
        self.interrupted.set()

    def abandon(self) -> None:
        self.abandoned.set()

    def print(self, text: str) -> None:
        """The code prints."""
        assert self.on_output is not None
        self.on_output(Output(stream="stdout", text=text))

    def finish(
        self, stdout: str = "", *, exit_code: int = 0, displays: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        """The code ends."""
        outcome = Outcome(stdout=stdout, stderr="", exit_code=exit_code, displays=tuple(displays))
        session = self.request.session
        self.answer(a_result(outcome, env=self.request.env, session=session))

    def answer(self, answer: RunOutcome | NsmError) -> None:
        """`wait` gives this."""
        self._answer = answer
        self._answered.set()


class FakeRunner:
    """Takes everything; `next` gives what was submitted, in order.

    Args:
        auto: called with each execution as it is submitted, for tests that need no hand on it.
    """

    def __init__(self, auto: Callable[[FakeExecution], None] | None = None) -> None:
        self.auto = auto
        self.listed: Sequence[Environment] = ENVIRONMENTS
        self.refusal: NsmError | None = None
        self.project: ProjectMount | NsmError | None = None
        self.asked_environments: list[ClientIdentity] = []
        self.subscribers: list[Callable[[], None]] = []
        self.sources: list[Sources | None] = []
        self.catalog = self.prewarm = self
        self.looks = 0
        self.inherit: Sequence[str] = ()
        self.instance = ""
        self.found: Callable[[], None] = lambda: None
        self.came: list[tuple[Mapping[str, str], str | None]] = []
        self.expected: list[ProjectMount | None] = []
        self.asked_projects: list[tuple[Mapping[str, str], str | None, str | None]] = []
        self._submitted, self._executions = trio.open_memory_channel[FakeExecution](1000)

    @property
    def service(self) -> RunService:
        """The same, for what wants the real one."""
        return cast("RunService", self)

    @property
    def keeps_checkpoints(self) -> bool:
        return False

    can_fork = False

    async def fork_for_call(self, request: RunRequest, fork_of: str) -> RunRequest:
        raise NotImplementedError("forks need a real session")

    async def next(self) -> FakeExecution:
        """The next execution that was submitted."""
        return await self._executions.receive()

    def submit(self, request: RunRequest, on_output: OutputSink | None) -> FakeExecution:
        if self.refusal is not None:
            raise self.refusal
        execution = FakeExecution(request, on_output)
        if self.auto is not None:
            self.auto(execution)
        self._submitted.send_nowait(execution)
        return execution

    def environments(self, client: ClientIdentity) -> Sequence[Environment]:
        self.asked_environments.append(client)
        return self.listed

    def subscribe(self, changed: Callable[[], None]) -> Callable[[], None]:
        self.subscribers.append(changed)
        return lambda: self.subscribers.remove(changed)

    def change(self, environments: Sequence[Environment]) -> None:
        """Change the list of environments."""
        self.listed = environments
        for changed in self.subscribers:
            changed()

    async def search_environments(self, client: ClientIdentity) -> None:
        del client
        self.looks += 1
        await trio.lowlevel.checkpoint()
        self.found()

    def resolve_project(
        self, *, variables: Mapping[str, str], root: str | None, cwd: str | None
    ) -> tuple[ProjectMount | None, str]:
        self.asked_projects.append((variables, root, cwd))
        if isinstance(self.project, NsmError):
            raise self.project
        return self.project, "" if self.project else "there is none in this test"

    @asynccontextmanager
    async def attached(
        self, *, variables: Mapping[str, str], cwd: str | None, sources: Sources | None
    ) -> AsyncGenerator[None]:
        self.came.append((variables, cwd))
        self.sources.append(sources)
        try:
            yield
        finally:
            self.sources.remove(sources)

    def expect(self, client: ClientIdentity) -> None:
        self.expected.append(client.project)


def a_project(path: str = "/home/user/src/project") -> ProjectMount:
    """A mount that nothing checks."""
    return ProjectMount(path=path, mount_point="/project", device=1, inode=1)


def echo(execution: FakeExecution) -> None:
    """Output the code itself, for `FakeRunner(auto=echo)`."""
    execution.finish(execution.request.code)
