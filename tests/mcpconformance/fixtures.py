"""The server that the official conformance suite wants to meet: its tools, resources and prompts.

Most of the suite's scenarios call tools of the suite's own (`test_image_content`, ...), which nsm
does not have. With them behind nsm's HTTP front, what the front does with pictures, progress, long
answers, questions to the client and streams that break off is tested, too. What each of them has to
answer is in the suite's own description of the scenario (`conformance list`, its repository).
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import mcp_types as types
import trio
from mcp.server.connection import allowed_log_levels
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata

Context = ServerRequestContext[Any, Any]
Json = dict[str, Any]
Result = types.CallToolResult | types.InputRequiredResult
Tool = Callable[[Context, types.CallToolRequestParams], Awaitable[Result]]

NAME = "suite-server"
STEP_S = 0.05
"""Between what a tool says, as the suite asks for."""

MISSING_CAPABILITY = -32021
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="
IMAGE = {"type": "image", "data": PNG, "mimeType": "image/png"}
EMBEDDED_TEXT = "Embedded resource content for testing."

NO_ARGUMENTS: Json = {"type": "object", "properties": {}}
JSON_SCHEMA_2020_12: Json = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
SCHEMAS: Mapping[str, Json] = {
    "test_sampling": {
        "type": "object",
        "properties": {"prompt": {"type": "string"}},
        "required": ["prompt"],
    },
    "test_elicitation": {
        "type": "object",
        "properties": {"message": {"type": "string"}},
        "required": ["message"],
    },
    "test_x_mcp_header": {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    },
    "json_schema_2020_12_tool": JSON_SCHEMA_2020_12,
}

DEFAULTS: Json = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "default": True},
    },
}
_THREE = ["option1", "option2", "option3"]
_VALUES = [
    {"const": f"value{number}", "title": f"{word} Option"}
    for number, word in enumerate(("First", "Second", "Third"), 1)
]
ENUMS: Json = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": _THREE},
        "titledSingle": {"type": "string", "oneOf": _VALUES},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": _THREE}},
        "titledMulti": {"type": "array", "items": {"anyOf": _VALUES}},
    },
}


def _elicitation(message: str, **properties: str) -> Json:
    return {
        "method": "elicitation/create",
        "params": {
            "message": message,
            "requestedSchema": {
                "type": "object",
                "properties": {name: {"type": kind} for name, kind in properties.items()},
                "required": list(properties),
            },
        },
    }


def _sampling(text: str, max_tokens: int) -> Json:
    message = {"role": "user", "content": {"type": "text", "text": text}}
    return {
        "method": "sampling/createMessage",
        "params": {"messages": [message], "maxTokens": max_tokens},
    }


ROOTS: Json = {"method": "roots/list", "params": {}}
WHAT_NAME = _elicitation("What is your name?", name="string")


def text(words: str) -> types.CallToolResult:
    return types.CallToolResult.model_validate({"content": [{"type": "text", "text": words}]})


def _content(*parts: Json) -> Tool:
    async def tool(_ctx: Context, _params: types.CallToolRequestParams) -> Result:
        return types.CallToolResult.model_validate({"content": parts})

    return tool


def _resource(uri: str, mime_type: str, words: str) -> Json:
    return {
        "type": "resource",
        "resource": {"uri": uri, "mimeType": mime_type, "text": words},
    }


def _ask(requests: Json, state: str | None = None) -> types.InputRequiredResult:
    wanted: Json = {"resultType": "input_required", "inputRequests": requests}
    if state is not None:
        wanted["requestState"] = state
    return types.InputRequiredResult.model_validate(wanted)


def _answer(given: types.CallToolRequestParams | types.GetPromptRequestParams, name: str) -> Any:
    """Return the client's answer to that question as JSON; None if it is unusable."""
    answer = (given.input_responses or {}).get(name)
    return None if answer is None else answer.model_dump(mode="json", by_alias=True)


def _asking(name: str, request: Json, reply: Callable[[Any], str | None]) -> Tool:
    """A tool that asks until it has an answer that `reply` can use."""

    async def tool(_ctx: Context, params: types.CallToolRequestParams) -> Result:
        answer = _answer(params, name)
        words = None if answer is None else reply(answer)
        return _ask({name: request}) if words is None else text(words)

    return tool


def _greeting(answer: Any) -> str | None:
    content: Json = answer.get("content") or {}
    name = content.get("name")
    return f"Hello, {name}!" if isinstance(name, str) else None


def _sampled(answer: Any) -> str | None:
    content: Json = answer.get("content") or {}
    return content.get("text")


async def _log(ctx: Context, words: str) -> None:
    if "info" in allowed_log_levels(ctx.protocol_version, ctx.meta):
        await ctx.session.send_notification(
            types.LoggingMessageNotification(
                params=types.LoggingMessageNotificationParams(level="info", data=words)
            ),
            related_request_id=ctx.request_id,
        )


async def _logging(ctx: Context, _params: types.CallToolRequestParams) -> Result:
    for words in ("started", "processing data", "completed"):
        await _log(ctx, f"Tool execution {words}" if " " not in words else f"Tool {words}")
        await trio.sleep(STEP_S)
    return text("Tool with logging executed successfully")


async def _progress(ctx: Context, _params: types.CallToolRequestParams) -> Result:
    for progress in (0, 50, 100):
        await ctx.session.report_progress(progress, 100)
        await trio.sleep(STEP_S)
    return text("done")


async def _error(_ctx: Context, _params: types.CallToolRequestParams) -> Result:
    result = text("This tool intentionally returns an error for testing")
    result.is_error = True
    return result


async def _request(ctx: Context, request: types.ServerRequest, kind: type[Any]) -> Any:
    return await ctx.session.send_request(
        request, kind, metadata=ServerMessageMetadata(related_request_id=ctx.request_id)
    )


async def _sampling_tool(ctx: Context, params: types.CallToolRequestParams) -> Result:
    prompt = (params.arguments or {}).get("prompt")
    request = types.CreateMessageRequest.model_validate(_sampling(str(prompt), 100))
    answer = await _request(ctx, request, types.CreateMessageResult)
    return text(f"LLM response: {answer.content.text}")


def _elicited(schema: Json, words: str) -> Tool:
    async def tool(ctx: Context, params: types.CallToolRequestParams) -> Result:
        message = str((params.arguments or {}).get("message", "Please fill in"))
        request = types.ElicitRequest.model_validate(
            {
                "method": "elicitation/create",
                "params": {"message": message, "requestedSchema": schema},
            }
        )
        answer = await _request(ctx, request, types.ElicitResult)
        return text(f"{words}: action={answer.action}, content={json.dumps(answer.content)}")

    return tool


async def _reconnection(ctx: Context, _params: types.CallToolRequestParams) -> Result:
    await trio.sleep(STEP_S)  # a stream that is closed at once has not begun
    if ctx.close_sse_stream is not None:
        await ctx.close_sse_stream()
    await trio.sleep(2 * STEP_S)
    return text("Reconnection test completed")


async def _missing_capability(ctx: Context, _params: types.CallToolRequestParams) -> Result:
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        raise MCPError(
            MISSING_CAPABILITY,
            "the client has not declared the capability `sampling`",
            {"requiredCapabilities": {"sampling": {}}},
        )
    return text("the client can sample")


async def _stateful(_ctx: Context, params: types.CallToolRequestParams) -> Result:
    if params.request_state != "asked" or _answer(params, "confirm") is None:
        return _ask({"confirm": _elicitation("Please confirm", ok="boolean")}, "asked")
    return text("state-ok")


async def _several(_ctx: Context, params: types.CallToolRequestParams) -> Result:
    questions = {
        "user_name": WHAT_NAME,
        "greeting": _sampling("Generate a greeting", 50),
        "client_roots": ROOTS,
    }
    if params.request_state != "asked" or any(_answer(params, name) is None for name in questions):
        return _ask(questions, "asked")
    return text(f"all of {', '.join(questions)} answered")


async def _rounds(_ctx: Context, params: types.CallToolRequestParams) -> Result:
    if params.request_state == "colour" and _answer(params, "step2") is not None:
        return text("both steps are done")
    if params.request_state == "name" and _answer(params, "step1") is not None:
        colour = _elicitation("Step 2: What is your favorite color?", color="string")
        return _ask({"step2": colour}, "colour")
    return _ask({"step1": _elicitation("Step 1: What is your name?", name="string")}, "name")


async def _capabilities(ctx: Context, _params: types.CallToolRequestParams) -> Result:
    known = ctx.session.client_capabilities or types.ClientCapabilities()
    questions: dict[str, Json] = {}
    if known.sampling is not None:
        questions["sampled"] = _sampling("What can you do?", 50)
    if known.elicitation is not None:
        questions["elicited"] = WHAT_NAME
    return _ask(questions) if questions else text("nothing can be asked")


TOOLS: Mapping[str, Tool] = {
    "json_schema_2020_12_tool": _content({"type": "text", "text": "taken"}),
    "test_audio_content": _content({"type": "audio", "data": WAV, "mimeType": "audio/wav"}),
    "test_elicitation": _elicited(
        {
            "type": "object",
            "properties": {"username": {"type": "string"}, "email": {"type": "string"}},
            "required": ["username", "email"],
        },
        "User response",
    ),
    "test_elicitation_sep1034_defaults": _elicited(DEFAULTS, "Elicitation completed"),
    "test_elicitation_sep1330_enums": _elicited(ENUMS, "Elicitation completed"),
    "test_embedded_resource": _content(
        _resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    ),
    "test_error_handling": _error,
    "test_image_content": _content(IMAGE),
    "test_input_required_result_capabilities": _capabilities,
    "test_input_required_result_elicitation": _asking("user_name", WHAT_NAME, _greeting),
    "test_input_required_result_list_roots": _asking(
        "client_roots", ROOTS, lambda answer: json.dumps(answer.get("roots"))
    ),
    "test_input_required_result_multi_round": _rounds,
    "test_input_required_result_multiple_inputs": _several,
    "test_input_required_result_request_state": _stateful,
    "test_input_required_result_sampling": _asking(
        "capital_question", _sampling("What is the capital of France?", 100), _sampled
    ),
    "test_input_required_result_tampered_state": _stateful,
    "test_logging_tool": _logging,
    "test_missing_capability": _missing_capability,
    "test_multiple_content_types": _content(
        {"type": "text", "text": "Multiple content types test:"},
        IMAGE,
        _resource(
            "test://mixed-content-resource", "application/json", '{"test":"data","value":123}'
        ),
    ),
    "test_reconnection": _reconnection,
    "test_sampling": _sampling_tool,
    "test_simple_text": _content(
        {"type": "text", "text": "This is a simple text response for testing."}
    ),
    "test_streaming_elicitation": _progress,
    "test_tool_with_logging": _logging,
    "test_tool_with_progress": _progress,
    "test_x_mcp_header": _content({"type": "text", "text": "taken"}),
}

RESOURCES: Mapping[str, Json] = {
    "test://static-binary": {"mimeType": "image/png", "blob": PNG},
    "test://static-text": {
        "mimeType": "text/plain",
        "text": "This is the content of the static text resource.",
    },
    "test://watched-resource": {"mimeType": "text/plain", "text": "Watched resource content"},
}
TEMPLATE = "test://template/{id}/data"

PROMPTS: Mapping[str, tuple[str, ...]] = {
    "test_input_required_result_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_simple_prompt": (),
}


class SuiteServer:
    """The handlers; what changes while it runs is who listens for changes."""

    def __init__(self) -> None:
        self._changes = InMemorySubscriptionBus()

    def make(self) -> Server[Any]:
        server: Server[Any] = Server(
            NAME,
            version="1",
            on_list_tools=self._tools,
            on_call_tool=self._call,
            on_list_resources=self._resources,
            on_list_resource_templates=self._templates,
            on_read_resource=self._read,
            on_subscribe_resource=self._nothing,
            on_unsubscribe_resource=self._nothing,
            on_subscriptions_listen=ListenHandler(self._changes),
            on_list_prompts=self._prompts,
            on_get_prompt=self._prompt,
            on_completion=self._complete,
        )
        # Not by the constructor: there it warns of what the newest revision no longer has.
        server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._nothing)
        server.middleware.append(
            RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=NAME)
        )
        return server

    async def _tools(self, _ctx: Context, _params: object) -> types.ListToolsResult:
        return types.ListToolsResult.model_validate(
            {
                "tools": [
                    {
                        "name": name,
                        "description": f"The suite's {name}.",
                        "inputSchema": SCHEMAS.get(name, NO_ARGUMENTS),
                    }
                    for name in sorted(
                        (*TOOLS, "test_trigger_tool_change", "test_trigger_prompt_change")
                    )
                ]
            }
        )

    async def _call(self, ctx: Context, params: types.CallToolRequestParams) -> Result:
        if params.name == "test_trigger_tool_change":
            await self._changes.publish(ToolsListChanged())
            return text("told")
        if params.name == "test_trigger_prompt_change":
            await self._changes.publish(PromptsListChanged())
            return text("told")
        tool = TOOLS.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
        return await tool(ctx, params)

    async def _resources(self, _ctx: Context, _params: object) -> types.ListResourcesResult:
        return types.ListResourcesResult.model_validate(
            {
                "resources": [
                    {
                        "uri": uri,
                        "name": uri.removeprefix("test://"),
                        "description": f"The suite's {uri}.",
                        "mimeType": content["mimeType"],
                    }
                    for uri, content in RESOURCES.items()
                ]
            }
        )

    async def _templates(self, _ctx: Context, _params: object) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult.model_validate(
            {
                "resourceTemplates": [
                    {
                        "uriTemplate": TEMPLATE,
                        "name": "template",
                        "description": "The suite's template.",
                        "mimeType": "application/json",
                    }
                ]
            }
        )

    async def _read(
        self, _ctx: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        before, after = TEMPLATE.split("{id}")
        content = RESOURCES.get(params.uri)
        if params.uri.startswith(before) and params.uri.endswith(after):
            number = params.uri.removeprefix(before).removesuffix(after)
            words = {"id": number, "templateTest": True, "data": f"Data for ID: {number}"}
            content = {"mimeType": "application/json", "text": json.dumps(words)}
        if content is None:
            raise MCPError(types.INVALID_PARAMS, "Resource not found", {"uri": params.uri})
        return types.ReadResourceResult.model_validate(
            {"contents": [{"uri": params.uri, **content}]}
        )

    async def _nothing(self, _ctx: Context, _params: object) -> types.EmptyResult:
        return types.EmptyResult()

    async def _prompts(self, _ctx: Context, _params: object) -> types.ListPromptsResult:
        return types.ListPromptsResult.model_validate(
            {
                "prompts": [
                    {
                        "name": name,
                        "description": f"The suite's {name}.",
                        "arguments": [{"name": word, "required": True} for word in arguments],
                    }
                    for name, arguments in PROMPTS.items()
                ]
            }
        )

    async def _prompt(
        self, _ctx: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult | types.InputRequiredResult:
        given = params.arguments or {}
        said: tuple[Json | str, ...]
        match params.name:
            case "test_simple_prompt":
                said = ("This is a simple prompt for testing.",)
            case "test_prompt_with_arguments":
                arg1, arg2 = given.get("arg1"), given.get("arg2")
                said = (f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'",)
            case "test_prompt_with_embedded_resource":
                said = (
                    _resource(given["resourceUri"], "text/plain", EMBEDDED_TEXT),
                    "Please process the embedded resource above.",
                )
            case "test_prompt_with_image":
                said = (IMAGE, "Please analyze the image above.")
            case "test_input_required_result_prompt":
                answer = _answer(params, "user_context")
                if answer is None:
                    question = "What context should the prompt use?"
                    return _ask({"user_context": _elicitation(question, context="string")})
                said = (f"The context is {json.dumps(answer.get('content'))}.",)
            case _:
                raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
        return types.GetPromptResult.model_validate(
            {
                "messages": [
                    {
                        "role": "user",
                        "content": {"type": "text", "text": part}
                        if isinstance(part, str)
                        else part,
                    }
                    for part in said
                ]
            }
        )

    async def _complete(
        self, _ctx: Context, params: types.CompleteRequestParams
    ) -> types.CompleteResult:
        words = [
            word for word in ("paris", "park", "party") if word.startswith(params.argument.value)
        ]
        return types.CompleteResult.model_validate(
            {"completion": {"values": words, "total": len(words), "hasMore": False}}
        )
