"""A stand-in for Anthropic's API, on the loopback: asks once for a tool, then tells its answer.

As in https://docs.anthropic.com/en/api/messages-streaming: server-sent events of one message.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Generator


@contextmanager
def model(tool: str, arguments: dict[str, object]) -> Generator[str]:
    """A model that calls one tool, where it is offered, and answers with what that returned.

    Yields:
        The API's URL.
    """

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name
            pass

        def do_HEAD(self) -> None:
            self._answer(200, b"")

        def do_GET(self) -> None:
            self._answer(404, b"")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if self.path.partition("?")[0] != "/v1/messages":
                self._answer(404, b"")
                return
            self._answer(200, b"".join(_events(json.loads(body), tool, arguments)))

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", "text/event-stream")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def _events(request: dict[str, Any], tool: str, arguments: dict[str, object]) -> list[bytes]:
    last = request["messages"][-1]["content"]
    parts = cast("list[dict[str, Any]]", last) if isinstance(last, list) else []
    results = [part for part in parts if part["type"] == "tool_result"]
    offered = tool in [offer["name"] for offer in request.get("tools", [])]
    if offered and not results:
        stop = "tool_use"
        block: dict[str, object] = {"type": "tool_use", "id": "toolu_1", "name": tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
    else:
        stop = "end_turn"
        block = {"type": "text", "text": ""}
        text = "".join(_text(result["content"]) for result in results)
        delta = {"type": "text_delta", "text": text or "nothing to tell"}
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": request["model"]}
    return [
        _event("message_start", message={**message, "content": [], "usage": usage}),
        _event("content_block_start", index=0, content_block=block),
        _event("content_block_delta", index=0, delta=delta),
        _event("content_block_stop", index=0),
        _event("message_delta", delta={"stop_reason": stop}, usage=usage),
        _event("message_stop"),
    ]


def _text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _event(name: str, **fields: object) -> bytes:
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()
