"""An MCP client that checks the main job from outside: what the NixOS VM test runs in its machine.

Standard library only, and no part of nsm: it knows the shim's command and the protocol. It prints a
line for each check and exits 1 at the first that fails. `tests/e2e/test_mcp_clients.py` runs it on
this host.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple, Self


class BrokenPromiseError(Exception):
    """A check that does not hold; the message is what was seen."""


class Step(NamedTuple):
    """A call of the tool, and what is to come of it.

    Attributes:
        env: `python` or `shell`.
        wanted: the whole text; a tuple: parts of the text; None: any text.
        session: its name; empty for none.
    """

    env: str
    code: str
    wanted: str | tuple[str, ...] | None
    is_error: bool = False
    session: str = ""


NETWORK = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"
USER = "import os, pwd; print(pwd.getpwuid(os.getuid()).pw_name, os.getuid())"
FUNCTION = "word=kept; cd /tmp; double() { echo $(($1 * 2)); }"

CHECKS: dict[str, tuple[Step, ...]] = {
    "python runs": (Step("python", "print(6 * 7)", "42\n"),),
    "the shell runs": (Step("shell", "echo $((6 * 7))", "42\n"),),
    "the working directory is the workspace": (
        Step("shell", 'pwd; echo "$HOME"', "/workspace\n/workspace\n"),
        Step("python", "import os; print(os.getcwd())", "/workspace\n"),
    ),
    "the network is out of reach": (
        Step("python", NETWORK, ("Network is unreachable",), is_error=True),
        Step("python", "import socket; print(socket.if_nameindex())", "[(1, 'lo')]\n"),
    ),
    "users are synthetic": (
        Step("shell", "cut -d: -f1,3 /etc/passwd", "user:1000\nnobody:65534\n"),
        Step("python", USER, "user 1000\n"),
    ),
    "stderr is told": (Step("shell", "echo out; echo err >&2", ("out", "err")),),
    "an exception is an error": (
        Step("python", "1 / 0", ("ZeroDivisionError",), is_error=True),
        Step("shell", "exit 3", None, is_error=True),
    ),
    "empty code is no error": (Step("python", "", None), Step("shell", "", None)),
    "state persists": (
        Step("python", "kept = [1, 2]", None, session="state"),
        Step("python", "print(sum(kept))", "3\n", session="state"),
    ),
    "sessions are apart": (
        Step("python", "mine = 1", None, session="one"),
        Step("python", "mine", ("NameError",), is_error=True, session="two"),
    ),
    "variables of the shell persist": (
        Step("shell", FUNCTION, None, session="shell"),
        Step("shell", 'echo "$word"; pwd; double 21', "kept\n/tmp\n42\n", session="shell"),
    ),
    "files of the workspace persist": (
        Step("shell", "echo content > file", None, session="files"),
        Step("shell", "cat /workspace/file", "content\n", session="files"),
        Step("shell", "cat /workspace/file", None, is_error=True, session="others"),
    ),
    "a one-shot is clean": (
        Step("shell", "echo left > /workspace/left; word=left", None),
        Step("shell", 'ls -A /workspace; echo "$word"', "\n"),
    ),
    "a session keeps its environment": (
        Step("python", "pass", None, session="typed"),
        Step("shell", "echo", ("{python}", "{shell}"), is_error=True, session="typed"),
    ),
}


class Client:
    """One MCP client over one shim; use it as a context manager."""

    def __init__(self, command: list[str]) -> None:
        self._shim = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shim.communicate()  # closes its stdin, which ends it

    def initialize(self) -> dict[str, Any]:
        client = {"name": "vm-client", "version": "1"}
        wanted = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        result = self.request("initialize", wanted)
        self._send({"method": "notifications/initialized"})
        return result

    def request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._sent += 1
        self._send({"id": self._sent, "method": method, "params": params})
        assert self._shim.stdout is not None
        for line in self._shim.stdout:
            message = json.loads(line)
            if message.get("id") == self._sent and "method" not in message:
                if "result" not in message:
                    raise BrokenPromiseError(f"{method}: {message}")
                result: dict[str, Any] = message["result"]
                return result
        raise BrokenPromiseError(f"{method}: the shim ended instead of answering")

    def run(self, code: str, env: str, session: str) -> tuple[str, bool]:
        """Call the tool: the text, and whether it is an error."""
        arguments = {"code": code, "env": env} | ({"session": session} if session else {})
        result = self.request("tools/call", {"name": "run", "arguments": arguments})
        texts = [part["text"] for part in result["content"] if part["type"] == "text"]
        # What is added where the text would be JSON.
        return "".join(texts).removesuffix("[exit code 0]"), bool(result.get("isError"))

    def _send(self, message: dict[str, Any]) -> None:
        assert self._shim.stdin is not None
        self._shim.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._shim.stdin.flush()


def list_tools(client: Client, environments: dict[str, str]) -> None:
    """Check that there is one tool, which knows the environments."""
    tools = client.request("tools/list", {})["tools"]
    if [tool["name"] for tool in tools] != ["run"]:
        raise BrokenPromiseError(f"{tools}")
    _contains(json.dumps(tools), environments.values())


def check(client: Client, environments: dict[str, str], step: Step) -> None:
    """Make a call, and compare."""
    # Not a session of a run with other environments: they have the same name space.
    session = f"{environments['python']}-{step.session}" if step.session else ""
    text, is_error = client.run(step.code, environments[step.env], session)
    differs = isinstance(step.wanted, str) and text != step.wanted
    if differs or is_error != step.is_error:
        raise BrokenPromiseError(f"{(text, is_error)} instead of {(step.wanted, step.is_error)}")
    if isinstance(step.wanted, tuple):
        _contains(text, [part.format(**environments) for part in step.wanted])


def _contains(text: str, parts: Iterable[str]) -> None:
    for part in parts:
        if part not in text:
            raise BrokenPromiseError(f"no {part!r} in {text!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default="python", help="an environment of Python")
    parser.add_argument("--shell", default="bash", help="an environment of Bash")
    parser.add_argument("shim", nargs="+", help="the command of nsm-mcp")
    options = parser.parse_args()
    environments = {"python": options.python, "shell": options.shell}
    title = "tools are listed"
    with Client(options.shim) as client:
        name = client.initialize()["serverInfo"]["name"]
        sys.stdout.write(f"ok initialize: {name}\n")
        try:
            list_tools(client, environments)
            sys.stdout.write(f"ok {title}\n")
            for title, steps in CHECKS.items():
                for step in steps:
                    check(client, environments, step)
                sys.stdout.write(f"ok {title}\n")
        except BrokenPromiseError as failure:
            sys.stdout.write(f"FAILED {title}: {failure}\n")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
