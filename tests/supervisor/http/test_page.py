"""The limits on `docs/how-to/http.md` are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from nsm.http import connection
from nsmd.http import asgi_app, listener
from nsmd.mcp import messages
from nsmd.model.settings import HttpSettings

PAGE = Path(__file__).resolve().parents[3] / "docs/how-to/http.md"


def test_the_limits_are_those_of_the_code() -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## Limits\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    rows = [line.strip("| ").split(" | ") for line in lines[2:]]
    numbers = {what: [int(n) for n in re.findall(r"\b\d+\b", limit)] for what, limit in rows}
    assert numbers == {
        "connections": [HttpSettings().max_connections, 503],
        "new connections": [listener.CONNECTIONS_BURST, listener.CONNECTIONS_PER_S],
        "head of a request": [
            connection.MAX_HEAD_BYTES // 1024,
            connection.MAX_HEAD_LINES,
            connection.MAX_SPACES,
            connection.HEAD_TIMEOUT_S,
        ],
        "body": [HttpSettings().max_body_mb, connection.BODY_TIMEOUT_S, 503],
        "what a body is made of": [
            messages.MAX_VALUES,
            messages.MAX_DEPTH,
            messages.MAX_BARE_BYTES // 1024**2,
            400,
        ],
        "an answer that is not read": [connection.WRITE_TIMEOUT_S],
        "a connection without a request": [connection.KEEP_ALIVE_S],
        "sessions of MCP": [asgi_app.MAX_SESSIONS, asgi_app.SESSION_IDLE_S // 60, 404],
    }
    assert listener.MAX_BODIES == 4


def test_what_is_kept_is_that_of_the_code() -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## When something breaks off\n")[1]
    text = " ".join(section.split())
    assert f"the newest {asgi_app.MAX_BYTES_OF_SESSION // 1024**2} MiB of each session" in text
    assert f"and {asgi_app.MAX_BYTES // 1024**2} MiB of all" in text
    assert "after the second that the stream told them to wait" in text
    assert asgi_app.RETRY_MS == 1000
