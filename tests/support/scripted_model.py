"""A model behind the API of OpenAI: it says what the file of its first argument has.

    python3 scripted_model.py ANSWERS.json PORT

It prints its port once it listens, and then what it is asked, one message in each line. Requests
without tools, such as that for a title, get one answer that is always the same.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TITLE = {"role": "assistant", "content": "A title"}


class Handler(BaseHTTPRequestHandler):
    """Answers each request with the next message."""

    answers: list[dict[str, object]]

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print(json.dumps(asked["messages"][-1]), flush=True)
        message = self.answers.pop(0) if asked.get("tools") else TITLE
        reason = "tool_calls" if "tool_calls" in message else "stop"
        body = {"id": "1", "created": 1, "model": "scripted"}
        if asked.get("stream"):
            kind = "text/event-stream"
            chunk = {**body, "object": "chat.completion.chunk"}
            first = {**chunk, "choices": [{"index": 0, "delta": message, "finish_reason": None}]}
            end: dict[str, object] = {"index": 0, "delta": {}, "finish_reason": reason}
            last: dict[str, object] = {**chunk, "choices": [end]}
            text = f"data: {json.dumps(first)}\n\ndata: {json.dumps(last)}\n\ndata: [DONE]\n\n"
        else:
            kind = "application/json"
            choice = {"index": 0, "finish_reason": reason, "message": message}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
            answer = {**body, "object": "chat.completion", "choices": [choice], "usage": usage}
            text = json.dumps(answer)
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the library's name
        """Print no line for each request."""


def call(name: str, **arguments: str) -> dict[str, object]:
    """Make the message with which the model calls a tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"index": 0, "id": name, "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def main() -> None:
    """Serve."""
    with open(sys.argv[1], encoding="utf-8") as script:
        Handler.answers = json.load(script)
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
