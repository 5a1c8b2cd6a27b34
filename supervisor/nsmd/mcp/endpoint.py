"""What the server does for one client: its project, its scope, the tool. HEAVY: imports `mcp`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

import trio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp_types import (
    SERVER_INFO_META_KEY,
    CallToolRequestParams,
    CallToolResult,
    JSONRPCMessage,
    ListRootsRequest,
    ListRootsResult,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
    Tool,
    ToolAnnotations,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from nsm._version import __version__
from nsm.wire.errors import (
    BadProjectError,
    BadRequestError,
    InternalError,
    NsmError,
)
from nsmd.mcp import describe, wire
from nsmd.mcp.arguments import RunArguments, parse_arguments
from nsmd.mcp.attach import Attach
from nsmd.mcp.listed import Listed
from nsmd.mcp.numbers import Number
from nsmd.mcp.progress import ProgressFeed
from nsmd.mcp.render import ToolReply, render_error, render_result
from nsmd.mcp.router import Call, Era, Router
from nsmd.mcp.seam import Execution, Runner
from nsmd.mcp.text import clean
from nsmd.pending import NO_ENVIRONMENT, patiently
from nsmd.values import Client, ProjectMount, RunRequest, RunResult

log = logging.getLogger(__name__)

ROOTS_TIMEOUT_S = 2.0
"""For a client's answer to `roots/list`; after that it has none. A call waits for it."""

MAX_RESULT_META_KEY = "anthropic/maxResultSizeChars"
"""On the tool: lifts the cap that some clients put on results without it."""

_LEFT_OUT_CHARS = 100
"""For the agent's line between head and tail, so that the renderer need not cut again."""

_NOTES_CHARS = 2000
"""Room for the bracketed lines on top of the output."""

_NAME = "nsm"
_MAX_CLIENT_CHARS = 64

Context = ServerRequestContext[Any, Call]


async def serve(
    stream: trio.abc.Stream,
    first_bytes: bytes,
    attach: Attach,
    runner: Runner,
    *,
    max_result_chars: int,
) -> None:
    """Serve one client until it is gone; see `nsmd.mcp.attachment.serve_attachment`."""
    endpoint = Endpoint(attach, runner, max_result_chars)
    await Router(stream, endpoint, attach.id).run(first_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Passed:
    """A call that the SDK let pass, as far as it decides over others.

    Attributes:
        meta: its envelope; without a progress token.
        modern: it is answered as the latest revision has it.
    """

    era: Era
    meta: object
    client: Client
    modern: bool


class Endpoint:
    """The handlers of one client, for both eras.

    The SDK's server opens a task, scopes and a context for each request, checks its envelope and
    moves it through five streams: three quarters of what the supervisor does for a call of code
    that does little. All of that depends on the envelope and on what came before. So a call with
    the very envelope of one that passed is answered without, as long as the client says nothing
    but calls in between.
    """

    def __init__(self, attach: Attach, runner: Runner, max_result_chars: int) -> None:
        self._attach = attach
        self._runner = runner
        self._max_result_chars = max_result_chars
        self._roots = _Roots()
        self._mount: tuple[str | None, ProjectMount] | None = None
        self._info = {"name": _NAME, "version": __version__}
        self._passed: _Passed | None = None
        self._forgotten = 0
        self._listed = Listed()
        self.server = self._make_server()

    async def announce(self, send: Callable[[JSONRPCMessage], Awaitable[None]]) -> None:
        """See `nsmd.mcp.router.Endpoint`."""
        await self._listed.announce(self._runner, send)

    def forget(self) -> None:
        """The client says something by which its calls may have to be answered otherwise."""
        self._passed = None
        self._forgotten += 1

    def answer_at_once(
        self, call: Call, params: Mapping[str, Any], answer: Callable[[dict[str, Any]], None]
    ) -> bool:
        """Answer a tool call without the SDK, now or later; False if that must not be.

        Args:
            call: gets the execution; to be cancelled and abandoned by who has it.
            params: of the call.
            answer: takes the result.
        """
        passed = self._passed
        if (
            passed is None
            or passed.era is not call.era
            or passed.meta != call.meta
            or params.get("name") != describe.TOOL_NAME
        ):
            return False
        if call.number is not None and call.number.again_s is not None:
            return False  # somebody may wait for its execution already, see `Execution.tell`
        modern = passed.modern
        try:
            arguments = parse_arguments(params.get("arguments"))
            request = self._request(passed.client, arguments, call.number)
            execution = self._runner.submit(request, None)
        except BadProjectError:
            self.forget()  # the usual way finds another directory, or says what is wrong
            return False
        except NO_ENVIRONMENT:
            return False  # the usual way looks for it
        except Exception as error:  # noqa: BLE001  # the boundary of a call, see `_reply`
            answer(self._result(_render_failure(error), modern))
            return True
        call.execution = execution

        def executed(outcome: RunResult | NsmError) -> None:
            answer(self._result(self._render(outcome, arguments), modern))

        execution.tell(executed)
        return True

    def _make_server(self) -> Server[Any]:
        """The SDK's server with these handlers."""
        server: Server[Any] = Server(
            _NAME,
            version=__version__,
            instructions=describe.INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._listed.listen,
        )
        # Not through the constructor, which warns that roots are deprecated: they are still what
        # most clients have.
        server.add_notification_handler(
            "notifications/roots/list_changed", NotificationParams, self._roots_changed
        )
        # Replaces the SDK's tracing, which nothing here reads.
        server.middleware = [self._answer_calls]
        return server

    async def _list_tools(
        self, ctx: Context, _params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        self._mount = None
        try:
            project, reason = await self._project(ctx)
        except NsmError as error:
            project, reason = None, str(error)
            client = self._client_with(ctx, None)
        else:
            client = self._client_with(ctx, project)
            self._runner.expect(client)
        environments = self._runner.environments(client)
        self._listed.note(ctx, client, environments)
        description = describe.describe(environments, project, reason)
        tool = Tool(
            name=describe.TOOL_NAME,
            description=description,
            input_schema=describe.schema(),
            annotations=ToolAnnotations.model_validate(describe.hints(environments)),
            _meta={MAX_RESULT_META_KEY: self._max_result_chars + _NOTES_CHARS},
        )
        return ListToolsResult(tools=[tool])

    async def _answer_calls(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Middleware: answers a tool call before the SDK checks its shape.

        The SDK would refuse arguments that are no object with an error that says nothing, and its
        checks of both directions cost a fifth of a call that does little. What it alone can say
        (before the handshake; no name at all) is left to it.
        """
        params = ctx.params or {}
        name = params.get("name")
        known = ctx.session.client_params is not None
        if ctx.method != "tools/call" or not known or not isinstance(name, str):
            return await call_next(ctx)
        reply = await self._reply(ctx, name, params.get("arguments"))
        return self._result(reply, ctx.protocol_version in MODERN_PROTOCOL_VERSIONS)

    def _result(self, reply: ToolReply, modern: bool) -> dict[str, Any]:
        result = wire.result_map(reply)
        if modern:
            result["resultType"] = "complete"
            result["_meta"][SERVER_INFO_META_KEY] = self._info
        return result

    async def _call_tool(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult:
        reply = await self._reply(ctx, params.name, params.arguments)
        return CallToolResult.model_validate(wire.result_map(reply), by_name=False)

    async def _reply(self, ctx: Context, name: str, arguments: object) -> ToolReply:
        try:
            _check_tool(name)
            return await self._run(ctx, parse_arguments(arguments))
        except Exception as error:  # noqa: BLE001  # of one call, which is answered
            return _render_failure(error)

    async def _run(self, ctx: Context, arguments: RunArguments) -> ToolReply:
        forgotten = self._forgotten
        client = await self._client(ctx)
        number = ctx.request.number if ctx.request is not None else None
        wants_progress = progress_token_from_params(ctx.params) is not None
        began_before_s = (number.again_s if number is not None else None) or 0.0
        feed = ProgressFeed(began_before_s) if wants_progress else None
        request, on_output = self._request(client, arguments, number), feed.take if feed else None
        try:
            try:
                execution = self._runner.submit(request, on_output)
            except NO_ENVIRONMENT:
                await self._runner.look(client)
                submit = partial(self._runner.submit, request, on_output)
                execution = await _submit_patiently(submit, ctx, feed)
        except BadProjectError:
            self._mount = None  # another directory may be there, or meant, next time
            raise
        if feed is None and forgotten == self._forgotten and ctx.request is not None:
            self._passed = _Passed(
                era=ctx.request.era,
                meta=ctx.request.meta,
                client=client,
                modern=ctx.protocol_version in MODERN_PROTOCOL_VERSIONS,
            )
        return self._render(await _result_of(execution, ctx, feed), arguments)

    def _request(
        self, client: Client, arguments: RunArguments, number: Number | None
    ) -> RunRequest:
        return RunRequest(
            client=client,
            env=arguments.env,
            code=arguments.code,
            session=arguments.session,
            timeout_s=arguments.timeout_s,
            reply_bytes=self._max_result_chars - _LEFT_OUT_CHARS,
            execution_id=None if number is None else number.execution_id,
            again=number is not None and number.again_s is not None,
        )

    def _render(self, outcome: RunResult | NsmError, arguments: RunArguments) -> ToolReply:
        if isinstance(outcome, NsmError):
            return render_error(outcome)
        try:
            return render_result(
                outcome,
                max_chars=self._max_result_chars,
                name_chosen=arguments.session == "new",
            )
        except Exception as error:  # noqa: BLE001  # as above
            return _render_failure(error)

    async def _client(self, ctx: Context) -> Client:
        project, _ = await self._project(ctx)
        return self._client_with(ctx, project)

    def _client_with(self, ctx: Context, project: ProjectMount | None) -> Client:
        name = _client_name(ctx)
        attach = self._attach
        return Client(
            name=name,
            scope=attach.scope or f"{name}:{clean(project.path) if project else '-'}",
            project=project,
            sources=attach.sources,
            idle_timeout_s=attach.idle_timeout_s,
            max_lifetime_s=attach.max_lifetime_s,
            inherited=attach.inherited,
            peer=attach.peer,
            bound=attach.bound,
        )

    async def _project(self, ctx: Context) -> tuple[ProjectMount | None, str]:
        """The project of this client and, if there is none, why.

        A mount is kept while the root is the same: finding it takes a dozen system calls. The
        registry sees when the directory behind it was replaced.

        Raises:
            BadProjectError: one that was asked for explicitly cannot be mounted.
        """
        if self._attach.confined:
            reason = "" if self._attach.project is not None else "this client may not choose one"
            return self._attach.project, reason
        variables = self._attach.variables
        told = bool(variables.get("PROJECT_DIR"))
        root = None if told else await self._roots.first(ctx)
        if self._mount is not None and self._mount[0] == root:
            return self._mount[1], ""
        project, reason = self._runner.resolve_project(
            variables=variables, root=root, cwd=self._attach.cwd
        )
        if project is not None:
            self._mount = root, project
        return project, reason

    async def _roots_changed(self, ctx: Context, _params: NotificationParams | None) -> None:
        self._roots.forget()
        if not self._attach.variables.get("PROJECT_DIR"):
            # The tool's description names the project.
            await ctx.session.send_tool_list_changed()


class _Roots:
    """The client's first root, asked for once and again after it changed."""

    def __init__(self) -> None:
        self._lock = trio.Lock()  # calls come in parallel; the client is asked once
        self._known = False
        self._first: str | None = None
        self._changes = 0

    def forget(self) -> None:
        """The client said that they have changed."""
        self._known = False
        self._changes += 1

    async def first(self, ctx: Context) -> str | None:
        """Path of the first root; None if the client has none, or does not say."""
        capabilities = ctx.session.client_capabilities
        if capabilities is None or capabilities.roots is None or not ctx.session.can_send_request:
            return None
        async with self._lock:
            if not self._known:
                changes = self._changes
                self._first = await _ask_first_root(ctx)
                self._known = changes == self._changes  # else they changed while it answered
            return self._first


async def _ask_first_root(ctx: Context) -> str | None:
    try:
        answer = await ctx.session.send_request(
            ListRootsRequest(), ListRootsResult, request_read_timeout_seconds=ROOTS_TIMEOUT_S
        )
    except (MCPError, ValidationError) as error:
        log.info("no roots from the client: %s", error)
        return None
    for root in answer.roots:
        parts = urlsplit(str(root.uri))
        if parts.scheme == "file" and parts.netloc in ("", "localhost"):
            return unquote(parts.path, errors="surrogateescape")
    return None


async def _submit_patiently(
    submit: Callable[[], Execution], ctx: Context, feed: ProgressFeed | None
) -> Execution:
    """Submit a call of an environment that is being made, when it is there."""
    if feed is None:
        return await patiently(submit)
    execution: Execution | NsmError
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run, partial(_report, ctx))
        try:
            execution = await patiently(submit)
        except NsmError as error:
            execution = error  # raised in a nursery, it would be in a group
        nursery.cancel_scope.cancel()
    if isinstance(execution, NsmError):
        raise execution
    return execution


async def _report(ctx: Context, seconds: float, text: str) -> None:
    await ctx.session.report_progress(seconds, None, text)


async def _result_of(execution: Execution, ctx: Context, feed: ProgressFeed | None) -> RunResult:
    """Wait for an execution and report its output meanwhile.

    Cancellation: taken back by the client, the execution is interrupted; otherwise the client is
    gone, and it is abandoned.
    """
    outcome: RunResult | NsmError | None = None
    try:
        if feed is None:
            outcome = await _outcome_of(execution)
        else:
            outcome = await _outcome_reported(execution, ctx, feed)
    finally:
        if outcome is None:
            if ctx.request is not None and ctx.request.cancelled:
                execution.interrupt()
            else:
                execution.abandon()
    assert outcome is not None
    if isinstance(outcome, NsmError):
        raise outcome
    return outcome


async def _outcome_reported(
    execution: Execution, ctx: Context, feed: ProgressFeed
) -> RunResult | NsmError:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feed.run, partial(_report, ctx))
        outcome = await _outcome_of(execution)
        nursery.cancel_scope.cancel()
    return outcome


async def _outcome_of(execution: Execution) -> RunResult | NsmError:
    """What came of it, an error included: raised in a nursery, that would be in a group."""
    try:
        return await execution.wait()
    except NsmError as error:
        return error


def _render_failure(error: Exception) -> ToolReply:
    """What the model learns of an error; of one that is ours, that it is not its fault."""
    if not isinstance(error, NsmError):
        log.error("a call of %s failed", describe.TOOL_NAME, exc_info=error)
        error = InternalError(
            "nsm failed to carry out the call.",
            hint="Whether the code ran is unknown. The supervisor's log has the details.",
        )
    return render_error(error)


def _client_name(ctx: Context) -> str:
    params = ctx.session.client_params
    given = params.client_info.name if params is not None else ""
    # It goes into terminals, logs and the names of scopes.
    name = "".join(c if c.isalnum() or c in "._-" else "-" for c in given[:_MAX_CLIENT_CHARS])
    return name.strip("-") or "unknown"


def _check_tool(name: str) -> None:
    if name != describe.TOOL_NAME:
        raise BadRequestError(
            f"There is no tool {name[:80]!r}.",
            hint=f"The only one is {describe.TOOL_NAME!r}; it takes `env` and `code`.",
        )
