"""Runs commands in a test machine for its host, over a virtio-serial port (tools/guestmachine.py).

Root's service in the guest, standard library only. Both directions carry frames: one line of
JSON, whose `size` says how many bytes follow it. Requests are `run`, `write` and `ping`, each with
an `id`; several may be under way. A request of `run` is answered by frames with `stream`, and any
by one with `exit` at its end.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import signal
import subprocess
import threading
import time
from typing import IO, Any

PORT = "/dev/virtio-ports/nsm.guest"
HANG_UP_S = 0.02
"""Between two looks whether somebody is at the other end: a port has no event for that."""


class Port:
    """The line to the host."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR)
        self._buffer = bytearray()
        self._writing = threading.Lock()

    def read(self) -> tuple[dict[str, Any], bytes]:
        """The next frame; waits for a host while there is none."""
        while (end := self._buffer.find(b"\n")) < 0:
            self._fill()
        header: dict[str, Any] = json.loads(self._buffer[:end])
        del self._buffer[: end + 1]
        size: int = header.get("size", 0)
        while len(self._buffer) < size:
            self._fill()
        payload = bytes(self._buffer[:size])
        del self._buffer[:size]
        return header, payload

    def write(self, header: dict[str, Any], payload: bytes = b"") -> None:
        data = json.dumps(header | {"size": len(payload)}).encode() + b"\n" + payload
        with self._writing:
            while data:
                data = data[os.write(self._fd, data) :]

    def _fill(self) -> None:
        select.select([self._fd], [], [])
        data = os.read(self._fd, 1 << 20)
        if not data:  # nobody is connected
            time.sleep(HANG_UP_S)
        self._buffer += data


def main() -> None:
    port = Port(PORT)
    while True:
        header, payload = port.read()
        answer = threading.Thread(target=serve, args=(port, header, payload), daemon=True)
        answer.start()


def serve(port: Port, header: dict[str, Any], payload: bytes) -> None:
    """Do what one request asks for."""
    try:
        match header["op"]:
            case "run":
                status = run(port, header, payload)
            case "write":
                status = write(header, payload)
            case _:
                status = 0
    except Exception as error:  # noqa: BLE001 - told to the host, which knows what it asked for
        port.write({"id": header.get("id"), "stream": "stderr"}, f"guest: {error!r}\n".encode())
        status = 255
    port.write({"id": header.get("id"), "exit": status})


def write(header: dict[str, Any], payload: bytes) -> int:
    """Put a file there whole."""
    with open(header["path"], "wb") as file:
        file.write(payload)
    os.chmod(header["path"], header["mode"])
    return 0


def run(port: Port, header: dict[str, Any], payload: bytes) -> int:
    """Run a program as a user, in a process group of its own, and tell what it says."""
    user = pwd.getpwnam(header["user"])
    groups = os.getgrouplist(user.pw_name, user.pw_gid)
    process = subprocess.Popen(
        header["argv"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=variables(user) | header["variables"],
        cwd=header["directory"] or user.pw_dir,
        user=user.pw_uid,
        group=user.pw_gid,
        extra_groups=[group for group in groups if group != user.pw_gid],
        start_new_session=True,
    )
    late = threading.Timer(header["timeout_s"], kill, args=(process.pid,))
    late.start()
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    readers = [
        threading.Thread(target=relay, args=(port, header["id"], name, pipe))
        for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr))
    ]
    for reader in readers:
        reader.start()
    with contextlib.suppress(BrokenPipeError):  # it wanted less than it was given
        process.stdin.write(payload)
        process.stdin.close()
    for reader in readers:
        reader.join()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    late.cancel()
    late.join()  # until it is reaped, its number is no other process's
    return process.wait()


def relay(port: Port, number: int, name: str, pipe: IO[bytes]) -> None:
    while data := os.read(pipe.fileno(), 1 << 16):
        port.write({"id": number, "stream": name}, data)


def kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def variables(user: pwd.struct_passwd) -> dict[str, str]:
    """Environment variables of a login, with the path to the user's service manager if there is
    one."""
    runtime = f"/run/user/{user.pw_uid}"
    session = {"XDG_RUNTIME_DIR": runtime} if os.path.isdir(runtime) and user.pw_uid else {}
    if os.path.exists(f"{runtime}/bus") and user.pw_uid:
        session["DBUS_SESSION_BUS_ADDRESS"] = f"unix:path={runtime}/bus"
    return {
        "HOME": user.pw_dir,
        "USER": user.pw_name,
        "LOGNAME": user.pw_name,
        "SHELL": user.pw_shell,
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        **session,
    }


if __name__ == "__main__":
    main()
