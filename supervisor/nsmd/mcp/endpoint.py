"""What the server does for one client: its project, its scope, the tool. HEAVY: imports `mcp`."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import unquote, urlsplit

import trio
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import progress_token_from_params
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListRootsRequest,
    ListRootsResult,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
    Tool,
    ToolAnnotations,
)
from pydantic import ValidationError

from nsm._version import __version__
from nsm.wire.errors import BadRequestError, InternalError, NsmError
from nsmd.mcp import describe, wire
from nsmd.mcp.arguments import RunArguments, parse_arguments
from nsmd.mcp.attach import Attach
from nsmd.mcp.progress import ProgressFeed
from nsmd.mcp.render import ToolReply, render_error, render_result
from nsmd.mcp.router import Call, Router
from nsmd.mcp.seam import Execution, Runner
from nsmd.mcp.text import clean
from nsmd.values import Client, ProjectMount, RunRequest, RunResult

log = logging.getLogger(__name__)

ROOTS_TIMEOUT_S = 2.0
"""For a client's answer to `roots/list`; after that it has none. A call waits for it."""

MAX_RESULT_META_KEY = "anthropic/maxResultSizeChars"
"""On the tool: lifts the cap that some clients put on results without it."""

_NOTES_CHARS = 2000
"""Room for the bracketed lines on top of the output."""

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
    await Router(stream, endpoint.server()).run(first_bytes)


class Endpoint:
    """The handlers of one client, for both eras."""

    def __init__(self, attach: Attach, runner: Runner, max_result_chars: int) -> None:
        self._attach = attach
        self._runner = runner
        self._max_result_chars = max_result_chars
        self._roots = _Roots()

    def server(self) -> Server[Any]:
        """The SDK's server with these handlers."""
        server: Server[Any] = Server(
            "nsm",
            version=__version__,
            instructions=describe.INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        # Not through the constructor, which warns that roots are deprecated: they are still what
        # most clients have.
        server.add_notification_handler(
            "notifications/roots/list_changed", NotificationParams, self._roots_changed
        )
        # Replaces the SDK's tracing, which nothing here reads.
        server.middleware = [_answer_misshapen_calls]
        return server

    async def _list_tools(
        self, ctx: Context, _params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        try:
            project, reason = await self._project(ctx)
        except NsmError as error:
            project, reason = None, str(error)
        description = describe.describe(self._runner.environments(), project, reason)
        tool = Tool(
            name=describe.TOOL_NAME,
            description=description,
            input_schema=describe.schema(),
            annotations=ToolAnnotations.model_validate(describe.hints()),
            _meta={MAX_RESULT_META_KEY: self._max_result_chars + _NOTES_CHARS},
        )
        return ListToolsResult(tools=[tool])

    async def _call_tool(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult:
        try:
            _check_tool(params.name)
            reply = await self._run(ctx, parse_arguments(params.arguments))
        except NsmError as error:
            reply = render_error(error)
        except Exception:
            # The boundary of a call: the model learns that it is not its fault, the log why.
            log.exception("a call of %s failed", params.name)
            reply = render_error(
                InternalError(
                    "nsm failed to carry out the call.",
                    hint="Whether the code ran is unknown. The supervisor's log has the details.",
                )
            )
        return wire.call_result(reply)

    async def _run(self, ctx: Context, arguments: RunArguments) -> ToolReply:
        request = RunRequest(
            client=await self._client(ctx),
            env=arguments.env,
            code=arguments.code,
            session=arguments.session,
            timeout_s=arguments.timeout_s,
        )
        wants_progress = progress_token_from_params(ctx.params) is not None
        feed = ProgressFeed() if wants_progress else None
        execution = await self._runner.submit(request, feed.take if feed else None)
        result = await _result_of(execution, ctx, feed)
        return render_result(
            result,
            max_chars=self._max_result_chars,
            name_chosen=arguments.session == "new",
        )

    async def _client(self, ctx: Context) -> Client:
        project, _ = await self._project(ctx)
        name = _client_name(ctx)
        attach = self._attach
        return Client(
            name=name,
            scope=attach.scope or f"{name}:{clean(project.path) if project else '-'}",
            project=project,
            idle_timeout_s=attach.idle_timeout_s,
            max_lifetime_s=attach.max_lifetime_s,
        )

    async def _project(self, ctx: Context) -> tuple[ProjectMount | None, str]:
        """The project of this client, decided anew each time: directories come and go.

        Raises:
            BadProjectError: one that was asked for explicitly cannot be mounted.
        """
        variables = self._attach.variables
        root = None if variables.get("PROJECT_DIR") else await self._roots.first(ctx)
        return self._runner.resolve_project(variables=variables, root=root, cwd=self._attach.cwd)

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


async def _result_of(execution: Execution, ctx: Context, feed: ProgressFeed | None) -> RunResult:
    """Wait for an execution and report its output meanwhile.

    Cancellation: taken back by the client, the execution is interrupted; otherwise the client is
    gone, and it is abandoned.
    """

    async def report(seconds: float, text: str) -> None:
        await ctx.session.report_progress(seconds, None, text)

    outcome: RunResult | NsmError | None = None
    try:
        async with trio.open_nursery() as nursery:
            if feed is not None:
                nursery.start_soon(feed.run, report)
            try:
                outcome = await execution.wait()
            except NsmError as error:
                outcome = error  # raised below: out of here it would be in a group
            nursery.cancel_scope.cancel()
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


async def _answer_misshapen_calls(
    ctx: ServerRequestContext[Any, Any], call_next: CallNext
) -> HandlerResult:
    """Middleware: arguments that are no object get an answer that the model can act on.

    The SDK would refuse them before any handler, with an error that says nothing.
    """
    arguments = (ctx.params or {}).get("arguments")
    if ctx.method == "tools/call" and not isinstance(arguments, dict | None):
        try:
            parse_arguments(arguments)
        except NsmError as error:
            return wire.call_result(render_error(error))
    return await call_next(ctx)


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
