"""An agent that speaks the base protocol only, as those of older artifacts do.

It is ready without a word about itself, runs Python in its own process, so that nothing can
interrupt it, Bash in a child, knows neither limits nor files, and bounds no output. Ours, written
from `docs/contributing/agent-protocol.md`, "Base exchange".
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import struct
import subprocess
import sys
import tempfile
import traceback

LARGEST = 64 * 1024 * 1024


def read_exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(CHANNEL_IN, size - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data


def send(frame: dict[str, object]) -> None:
    body = json.dumps(frame).encode()
    data = struct.pack(">I", len(body)) + body
    while data:
        data = data[os.write(CHANNEL_OUT, data) :]


class Python:
    def __init__(self) -> None:
        self.namespace: dict[str, object] = {"__name__": "__main__"}

    def run(self, code: str) -> tuple[str, str, int]:
        out, err, status = io.StringIO(), io.StringIO(), 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                exec(compile(code, "<session>", "exec"), self.namespace)
            except SystemExit as leaving:
                status = leaving.code if isinstance(leaving.code, int) else 1
            except Exception:  # noqa: BLE001 - whatever the code raises
                traceback.print_exc()
                status = 1
        return out.getvalue(), err.getvalue(), status


class Bash:
    """One shell; each execution is a file that it reads, with files for its output."""

    def __init__(self) -> None:
        self.shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def run(self, code: str) -> tuple[str, str, int]:
        assert self.shell.stdin is not None
        assert self.shell.stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("code", "out", "err")]
            with open(paths[0], "w") as file:
                file.write(code)
            line = ". {} >{} 2>{}; echo $?\n".format(*paths)
            self.shell.stdin.write(line.encode())
            self.shell.stdin.flush()
            status = self.shell.stdout.readline()
            texts: list[str] = []
            for path in paths[1:]:
                with open(path, errors="replace") as file:
                    texts.append(file.read())
        return texts[0], texts[1], int(status or 1)


def main() -> None:
    kinds: dict[str, type[Python | Bash]] = {"python": Python, "bash": Bash}
    running: dict[str, Python | Bash] = {}
    send({"type": "ready"})
    while True:
        (size,) = struct.unpack(">I", read_exactly(4))
        if size > LARGEST:
            sys.exit("a frame that is too long")
        try:
            frame = json.loads(read_exactly(size))
        except ValueError as error:
            send({"type": "error", "message": f"bad message: {error}"})
            continue
        kind = frame.get("type")
        if kind == "shutdown":
            return
        if kind == "ping":
            send({"type": "pong"})
        elif kind == "execute":
            name = frame.get("interpreter", "python")
            if name not in kinds:
                send({"type": "error", "id": frame.get("id"), "message": f"no {name} here"})
                continue
            if name not in running:
                running[name] = kinds[name]()
            out, err, status = running[name].run(frame.get("code", ""))
            result = {"type": "result", "id": frame.get("id"), "stdout": out, "stderr": err}
            send({**result, "exit_code": status})
        else:
            send({"type": "error", "message": f"unknown message type: {kind}"})


if __name__ == "__main__":
    CHANNEL_IN, CHANNEL_OUT = os.dup(0), os.dup(1)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    main()
