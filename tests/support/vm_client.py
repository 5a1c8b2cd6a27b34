"""An MCP client that checks the main job from outside: what the NixOS VM test runs in its machine.

Standard library only, and no part of nsm: it knows the shim's command and the protocol. It prints a
line for each check and exits 1 at the first that fails. `tests/e2e/test_vm_client.py` runs it on
this host.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Self


class BrokenPromiseError(Exception):
    """A check that does not hold; the message is what was seen."""


class Result(NamedTuple):
    """Result of a call of the tool: its text, and whether it is an error."""

    text: str
    is_error: bool


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

    def run(self, code: str, env: str, session: str | None = None) -> Result:
        arguments = {"code": code, "env": env} | ({"session": session} if session else {})
        result = self.request("tools/call", {"name": "run", "arguments": arguments})
        texts = [part["text"] for part in result["content"] if part["type"] == "text"]
        # What is added where the text would be JSON.
        return Result("".join(texts).removesuffix("[exit code 0]"), bool(result.get("isError")))

    def _send(self, message: dict[str, Any]) -> None:
        assert self._shim.stdin is not None
        self._shim.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self._shim.stdin.flush()


class Checks:
    """The main job, a method for each promise.

    Args:
        client: initialized.
        python, shell: names of environments.
    """

    def __init__(self, client: Client, python: str, shell: str) -> None:
        self._client = client
        self._python = python
        self._shell = shell

    def tools_are_listed(self) -> None:
        tools = self._client.request("tools/list", {})["tools"]
        equal([tool["name"] for tool in tools], ["run"])
        for name in (self._python, self._shell):
            contains(json.dumps(tools), name)

    def python_runs(self) -> None:
        equal(self.python("print(6 * 7)"), Result("42\n", is_error=False))

    def the_shell_runs(self) -> None:
        equal(self.shell("echo $((6 * 7))"), Result("42\n", is_error=False))

    def the_working_directory_is_the_workspace(self) -> None:
        equal(self.shell('pwd; echo "$HOME"').text, "/workspace\n/workspace\n")
        equal(self.python("import os; print(os.getcwd())").text, "/workspace\n")

    def the_network_is_out_of_reach(self) -> None:
        code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"
        failed = self.python(code)
        equal(failed.is_error, True)
        contains(failed.text, "Network is unreachable")
        interfaces = self.python("import socket; print(socket.if_nameindex())")
        equal(interfaces.text, "[(1, 'lo')]\n")

    def users_are_synthetic(self) -> None:
        lines = self.shell("cut -d: -f1,3 /etc/passwd").text
        equal(lines, "user:1000\nnobody:65534\n")
        code = "import os, pwd; print(pwd.getpwuid(os.getuid()).pw_name, os.getuid())"
        equal(self.python(code).text, "user 1000\n")

    def stderr_is_told(self) -> None:
        contains(self.shell("echo out; echo err >&2").text, "out", "err")

    def an_exception_is_an_error(self) -> None:
        failed = self.python("1 / 0")
        equal(failed.is_error, True)
        contains(failed.text, "ZeroDivisionError")
        equal(self.shell("exit 3").is_error, True)

    def empty_code_is_no_error(self) -> None:
        for result in (self.python(""), self.shell("")):
            equal(result.is_error, False)

    def state_persists(self) -> None:
        equal(self.python("kept = [1, 2]", "state").is_error, False)
        equal(self.python("print(sum(kept))", "state").text, "3\n")

    def sessions_are_apart(self) -> None:
        self.python("mine = 1", "one")
        other = self.python("mine", "two")
        equal(other.is_error, True)
        contains(other.text, "NameError")

    def variables_of_the_shell_persist(self) -> None:
        self.shell("word=kept; cd /tmp; double() { echo $(($1 * 2)); }", "shell")
        equal(self.shell('echo "$word"; pwd; double 21', "shell").text, "kept\n/tmp\n42\n")

    def files_of_the_workspace_persist(self) -> None:
        self.shell("echo content > file", "files")
        equal(self.shell("cat /workspace/file", "files").text, "content\n")
        equal(self.shell("cat /workspace/file", "others").is_error, True)

    def a_one_shot_is_clean(self) -> None:
        self.shell("echo left > /workspace/left; word=left")
        equal(self.shell('ls -A /workspace; echo "$word"').text, "\n")

    def a_session_keeps_its_environment(self) -> None:
        self.python("pass", "typed")
        refused = self.shell("echo", "typed")
        equal(refused.is_error, True)
        contains(refused.text, self._python, self._shell)

    def python(self, code: str, session: str | None = None) -> Result:
        return self._client.run(code, self._python, self._named(session))

    def shell(self, code: str, session: str | None = None) -> Result:
        return self._client.run(code, self._shell, self._named(session))

    def _named(self, session: str | None) -> str | None:
        """Not a session of a run with other environments: they have the same name space."""
        return f"{self._python}-{session}" if session else None


def equal(seen: object, wanted: object) -> None:
    if seen != wanted:
        raise BrokenPromiseError(f"{seen!r} instead of {wanted!r}")


def contains(seen: str, *wanted: str) -> None:
    for part in wanted:
        if part not in seen:
            raise BrokenPromiseError(f"no {part!r} in {seen!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", default="python", help="an environment of Python")
    parser.add_argument("--shell", default="bash", help="an environment of Bash")
    parser.add_argument("shim", nargs="+", help="the command of nsm-mcp")
    options = parser.parse_args()
    with Client(options.shim) as client:
        name = client.initialize()["serverInfo"]["name"]
        sys.stdout.write(f"ok initialize: {name}\n")
        checks = Checks(client, options.python, options.shell)
        for title, check in _all(checks):
            try:
                check()
            except BrokenPromiseError as failure:
                sys.stdout.write(f"FAILED {title}: {failure}\n")
                return 1
            sys.stdout.write(f"ok {title}\n")
    return 0


def _all(checks: Checks) -> list[tuple[str, Callable[[], None]]]:
    """The checks by their names in words."""
    helpers = {"python", "shell"}
    names = [name for name in vars(Checks) if not name.startswith("_") and name not in helpers]
    return [(name.replace("_", " "), getattr(checks, name)) for name in names]


if __name__ == "__main__":
    sys.exit(main())
