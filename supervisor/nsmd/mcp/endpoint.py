"""Server of one client: its project, its scope, the tools. HEAVY: imports `mcp`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import trio
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    SERVER_INFO_META_KEY,
    CallToolRequestParams,
    CallToolResult,
    JSONRPCMessage,
    ListToolsResult,
    NotificationParams,
    PaginatedRequestParams,
    Tool,
    ToolAnnotations,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from nsm._version import __version__
from nsm.wire.errors import BadProjectError, InternalError, NsmError
from nsmd.bridge.bridge import BridgeService
from nsmd.bridge.programs import Caller, Way
from nsmd.environments.on_demand import NO_ENVIRONMENT, patiently
from nsmd.manager.jobs import session_for_code_job
from nsmd.manager.run_service import RunService
from nsmd.mcp import bridge_tools, jobs, messages, run_tool
from nsmd.mcp.attachment import Attach
from nsmd.mcp.bridge_tools import ProgramTools
from nsmd.mcp.clients import (
    ClientRoots,
    Context,
    ListedTools,
    ProgressFeed,
    View,
    began_before_s,
    client_name,
    number_of,
    outcome_of,
    submit_patiently,
    wants_progress,
)
from nsmd.mcp.render import LEFT_OUT_CHARS, ToolReply, render_error, render_result
from nsmd.mcp.router import Number, Router
from nsmd.mcp.run_tool import JobId, RunArguments, parse_arguments
from nsmd.mcp.text import clean
from nsmd.model.limits import code_of_undo
from nsmd.model.values import ClientIdentity, ProjectMount, RunRequest
from nsmd.sessions.session import Session

log = logging.getLogger(__name__)

MAX_RESULT_META_KEY = "anthropic/maxResultSizeChars"
"""Key of the tool's metadata that lifts the limit which some clients set on results."""

_NOTES_CHARS = 2000
"""Room for the bracketed lines after the output."""

_NAME = "nsm"


async def serve(
    stream: trio.abc.Stream,
    first_bytes: bytes,
    attach: Attach,
    runner: RunService,
    *,
    max_result_chars: int,
    programs: BridgeService,
) -> None:
    """Serve one client until it is gone (`nsmd.mcp.attachment.serve_attachment`)."""
    endpoint = Endpoint(attach, runner, max_result_chars, programs)
    await Router(stream, endpoint, attach.id).run(first_bytes)


class Endpoint:
    """The handlers of one client, for both eras.

    Behind other transports than a shim's, one endpoint may have several clients, for which `attach`
    holds alike. It must be confined then, since roots belong to one client.
    """

    def __init__(
        self,
        attach: Attach,
        runner: RunService,
        max_result_chars: int,
        programs: BridgeService,
        *,
        way: Way = "mcp",
    ) -> None:
        self._attach = attach
        self._runner = runner
        self._max_result_chars = max_result_chars
        self._programs = programs
        self._tools = ProgramTools(self._programs, max_result_chars)
        self._had_programs = False
        self._way: Way = way
        self._roots = ClientRoots()
        # The project is known without the client's roots.
        self._is_told = attach.confined or bool(attach.variables.get("PROJECT_DIR"))
        self._known: tuple[str, ProjectMount | None, ClientIdentity] | None = None
        self._found: tuple[str | None, tuple[ProjectMount | None, str]] | None = None
        self._described: tuple[ProjectMount | None] | None = None  # set once the tools were listed
        self._info = {"name": _NAME, "version": __version__}
        self._listed = ListedTools(self._view)
        self.server = self._make_server()

    async def announce(
        self, send: Callable[[JSONRPCMessage], Awaitable[None]] | None = None
    ) -> None:
        """Tell the client of changes that it did not ask about, until cancelled."""
        await self._listed.announce(
            (self._runner.catalog.subscribe, self._subscribe_programs), send
        )

    def _make_server(self) -> Server[Any]:
        """Make the SDK's server with these handlers."""
        server = _Server(
            _NAME,
            version=__version__,
            instructions=run_tool.instructions(self._has_programs()),
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_subscriptions_listen=self._listed.listen,
        )
        # Not through the constructor, which warns that roots are deprecated: most clients still use
        # them.
        server.add_notification_handler(
            "notifications/roots/list_changed", NotificationParams, self._roots_changed
        )
        jobs.Tasks(
            self._session_of, lambda: self._runner.session_manager.grace_s, self._max_result_chars
        ).add_to(server)
        # Replaces the SDK's tracing, which nothing here uses.
        server.middleware = [self._answer_calls]
        return server

    async def _list_tools(
        self, ctx: Context, _params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        self._found = None
        try:
            # Some clients read only the answer to their request, so roots have to wait.
            project, reason = self._project_at(self._roots.last)
        except NsmError as error:
            project, reason = None, str(error)
            client = self._client_with(ctx, None)
        else:
            client = self._client_with(ctx, project)
            self._runner.prewarm.expect(client)
        if project is None and not self._is_told and self._roots.to_be_asked(ctx):
            reason = run_tool.ASKED_LATER
        self._described = (project,)
        view = environments, has_programs = self._view(client)
        self._had_programs = has_programs  # clients with this list know that
        self._listed.remember(ctx, client, view)
        undo, fork = self._runner.keeps_checkpoints, self._runner.can_fork
        description = run_tool.describe(environments, project, reason, undo=undo, fork=fork)
        meta = {MAX_RESULT_META_KEY: self._max_result_chars + _NOTES_CHARS}
        tool = Tool(
            name=run_tool.TOOL_NAME,
            description=description,
            input_schema=run_tool.schema(environments, undo=undo, fork=fork),
            annotations=ToolAnnotations.model_validate(run_tool.hints(environments)),
            _meta=meta,
        )
        return ListToolsResult(tools=[tool, *(self._tools.tools(meta) if has_programs else ())])

    async def _answer_calls(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Pass a tool call to `_reply` before the SDK checks its shape (a middleware).

        The SDK would refuse arguments that are no object with an error that says nothing, and its
        checks of both directions cost a fifth of a short call. It still has to check calls without
        a name, and calls of clients that have not given theirs; `_call_tool` handles those that
        pass.
        """
        params = ctx.params or {}
        name = params.get("name")
        known = ctx.session.client_params is not None
        if ctx.method != "tools/call" or not known or not isinstance(name, str):
            return await call_next(ctx)
        reply = await self._reply(ctx, name, params.get("arguments"))
        modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        if reply.started is not None and modern and jobs.takes_tasks(ctx):
            stamp = {SERVER_INFO_META_KEY: self._info}
            return {"resultType": "task", **jobs.task_of(*reply.started), "_meta": stamp}
        return self._result(reply, modern)

    def _result(self, reply: ToolReply, modern: bool) -> dict[str, Any]:
        result = messages.result_map(reply)
        if modern:
            result["resultType"] = "complete"
            result["_meta"][SERVER_INFO_META_KEY] = self._info
        return result

    async def _call_tool(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult:
        reply = await self._reply(ctx, params.name, params.arguments)
        return CallToolResult.model_validate(messages.result_map(reply), by_name=False)

    async def _reply(self, ctx: Context, name: str, arguments: object) -> ToolReply:
        """Carry out a tool call."""
        try:
            if name == run_tool.TOOL_NAME:
                return await self._run(ctx, parse_arguments(arguments))
            return await self._reply_of_programs(ctx, name, arguments)
        except MCPError:
            raise  # the SDK handles it
        except Exception as error:  # noqa: BLE001  # of one call, which is answered
            return _reply_of_failure(error, name)

    async def _reply_of_programs(self, ctx: Context, name: str, arguments: object) -> ToolReply:
        # A client with these tools in its list may still call them just after the last program was
        # removed, for example while a definition is edited.
        others = bridge_tools.NAMES if self._has_programs() or self._had_programs else ()
        if name not in others:
            error = _no_tool(name, others)
            if name == bridge_tools.EXECUTE:
                self._tools.refuse(
                    self._caller(self._client_with(ctx, None)), arguments, str(error)
                )
            raise error
        try:
            client = await self._client(ctx)
        except NsmError:
            client = self._client_with(ctx, None)  # a program of the host needs no project
        return await self._tools.reply(ctx, self._caller(client), name, arguments)

    def _subscribe_programs(self, changed: Callable[[], None]) -> Callable[[], None]:
        def other_programs() -> None:
            # If the endpoint has several clients, those that connect from now on learn it.
            self.server.instructions = run_tool.instructions(self._has_programs())
            changed()

        return self._programs.subscribe(other_programs)

    def _has_programs(self) -> bool:
        """Return whether the client may start programs now, under any name."""
        has = self._tools.visible(self._caller(ClientIdentity(name="", scope="")))
        self._had_programs |= has
        return has

    async def _run(self, ctx: Context, arguments: RunArguments) -> ToolReply:
        client = await self._client(ctx)
        if arguments.job is not None:
            return await self._tell_of_job(ctx, arguments, arguments.job)
        if arguments.background:
            return await self._start_job(self._request(client, arguments, number_of(ctx)))
        feed = ProgressFeed(began_before_s(ctx)) if wants_progress(ctx) else None
        request = self._request(client, arguments, number_of(ctx))
        on_output = feed.add if feed else None
        if arguments.fork_of is not None:
            request = await self._runner.fork_for_call(request, arguments.fork_of)
        try:
            try:
                execution = self._runner.submit(request, on_output)
            except NO_ENVIRONMENT:
                await self._runner.search_environments(client)
                submit = partial(self._runner.submit, request, on_output)
                execution = await submit_patiently(submit, ctx, feed)
        except BadProjectError:
            self._found = None  # next time another directory may be there, or be meant
            raise
        return render_result(
            await outcome_of(execution, ctx, feed),
            max_chars=self._max_result_chars,
            name_chosen=arguments.session == "new"
            or (arguments.fork_of is not None and arguments.session is None),
        )

    async def _start_job(self, request: RunRequest) -> ToolReply:
        find = partial(session_for_code_job, self._runner, request)
        try:
            found = find()
        except NO_ENVIRONMENT:
            await self._runner.search_environments(request.client)
            found = await patiently(find)
        return await jobs.start_job(self._runner, found)

    async def _session_of(self, ctx: Context, job: JobId) -> Session:
        client = await self._client(ctx)
        session = self._runner.named(client.scope, job.session)
        if session is None:
            raise jobs.no_job(job)
        return session

    async def _tell_of_job(self, ctx: Context, arguments: RunArguments, job: JobId) -> ToolReply:
        number = number_of(ctx)
        return await jobs.report_on_job(
            await self._session_of(ctx, job),
            job,
            key=None if number is None else number.execution_id,
            wait_s=arguments.timeout_s or 0.0,
            stop_grace_s=self._runner.session_manager.grace_s if arguments.stop else None,
            max_bytes=self._max_result_chars,
        )

    def _request(
        self, client: ClientIdentity, arguments: RunArguments, number: Number | None
    ) -> RunRequest:
        return RunRequest(
            client=client,
            env=arguments.env,
            code=code_of_undo(1) if arguments.undo else arguments.code,
            session=arguments.session,
            timeout_s=arguments.timeout_s,
            reply_chars=self._max_result_chars - LEFT_OUT_CHARS,
            execution_id=None if number is None else number.execution_id,
            again=number is not None and number.again_s is not None,
            sent_to="" if number is None else number.sent_to,
            reset=arguments.reset,
            undo=int(arguments.undo),
            must_exist=arguments.undo,
        )

    async def _client(self, ctx: Context) -> ClientIdentity:
        """The client, with its project.

        Finding that takes a dozen system calls, so it is looked for again only with the next list
        of tools, or if the root is another one. The run service notices a replaced directory.

        Raises `BadProjectError`.
        """
        project, _ = self._project_at(None if self._is_told else await self._roots.first(ctx))
        if self._described not in (None, (project,)):
            # The tool's description names another one, since the client had not sent its roots yet.
            self._described = (project,)
            await ctx.session.send_tool_list_changed()
        return self._client_with(ctx, project)

    def _caller(self, client: ClientIdentity) -> Caller:
        attach = self._attach
        return Caller(
            client=client.name,
            scope=client.scope,
            way=self._way,
            peer=attach.peer,
            granted=attach.programs,
            writable=attach.writable,
        )

    def _view(self, client: ClientIdentity) -> View:
        """Return the view that a client would get now."""
        return tuple(self._runner.catalog.environments(client)), self._has_programs()

    def _client_with(self, ctx: Context, project: ProjectMount | None) -> ClientIdentity:
        params = ctx.session.client_params
        given = params.client_info.name if params is not None else ""
        if self._known is not None and self._known[:2] == (given, project):
            return self._known[2]
        name, attach = client_name(given), self._attach
        client = ClientIdentity(
            name=name,
            scope=attach.scope or f"{name}:{clean(project.path) if project else '-'}",
            project=project,
            sources=attach.sources,
            idle_timeout_s=attach.idle_timeout_s,
            max_lifetime_s=attach.max_lifetime_s,
            inherited=attach.inherited,
            peer=attach.peer,
            bound=attach.bound,
            resumes=attach.resumes,
        )
        self._known = given, project, client
        return client

    def _project_at(self, root: str | None) -> tuple[ProjectMount | None, str]:
        if self._attach.confined:
            reason = "" if self._attach.project is not None else "this client may not choose one"
            return self._attach.project, reason
        if self._found is None or self._found[0] != root:
            self._found = (
                root,
                self._runner.resolve_project(
                    variables=self._attach.variables, root=root, cwd=self._attach.cwd
                ),
            )
        return self._found[1]

    async def _roots_changed(self, ctx: Context, _params: NotificationParams | None) -> None:
        self._roots.forget()
        if not self._is_told:
            await self._roots.first(ctx)  # no request waits for it
            # The tool's description names the project.
            await ctx.session.send_tool_list_changed()


def _reply_of_failure(error: Exception, tool: str) -> ToolReply:
    """Render an error for the model; for a bug of ours, say that it is not the model's fault."""
    if not isinstance(error, NsmError):
        log.error("a call of %s failed", tool, exc_info=error)
        what = "the program" if tool == bridge_tools.EXECUTE else "the code"
        error = InternalError(
            "nsm failed to carry out the call.",
            hint=f"Whether {what} ran is unknown. The supervisor's log has the details.",
        )
    return render_error(error)


def _no_tool(name: str, others: Sequence[str]) -> MCPError:
    """Make an error of the protocol, as the specification demands, instead of a result."""
    only = f"The only one is {run_tool.TOOL_NAME!r}; it takes `env` and `code`."
    listed = f"There are {', '.join((run_tool.TOOL_NAME, *others))}."
    return MCPError(INVALID_PARAMS, f"There is no tool {name[:80]!r}. {listed if others else only}")


class _Server(Server[Any]):
    """The SDK's server; it announces itself that its list of tools changes."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        return super().create_initialization_options(
            notification_options or NotificationOptions(tools_changed=True),
            experimental_capabilities,
            extensions,
        )
