"""Programs that know no proxy: in forks, after a restart, and while the list changes."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e_support import supervisor
from live_forks import needs_scopes, printed

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = [pytest.mark.jail, pytest.mark.slow]

HOST = "host.nsm.internal"

SAY = """
import socket
def say(address, text=b"x"):
    try:
        with socket.create_connection(address, 20) as s:
            s.sendall(text)
            s.shutdown(socket.SHUT_WR)
            return s.makefile("rb").read()
    except OSError as error:
        return type(error).__name__
"""


@pytest.fixture
def port() -> Generator[int]:
    """Port of a server that speaks first, and says what it heard once the client has ended."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):  # it is closed
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        connection.sendall(b"hello ")
                        heard = connection.makefile("rb").read()
                        connection.sendall(heard)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@needs_scopes
def test_names_lead_on_in_forks_and_after_a_restart(short_dir: Path, port: int) -> None:
    with supervisor(short_dir) as first:
        with first.client() as client:
            rule = f"{HOST}:{port}"
            found = f"found = socket.getaddrinfo({HOST!r}, {port}, socket.AF_INET)[0][4]"
            client.run(f"{SAY}{found}", env="python", session="one", network=rule)
            client.fork("one", "two")
            # The fork has the address already, and looks nothing up.
            for name in ("one", "two"):
                assert printed(client, name, "print(say(found))") == "b'hello x'\n"
        first.kill()
        with supervisor(short_dir, keep=True) as second, second.client() as client:
            for name in ("one", "two"):
                called = f"print(say(found), say(({HOST!r}, {port})))"
                assert printed(client, name, called) == "b'hello x' b'hello x'\n"
                called = f"print(say(('other.test', {port})), say(({HOST!r}, {port - 1})))"
                assert printed(client, name, called) == "gaierror ConnectionRefusedError\n"
            client.kill_all()


def test_names_come_and_go_with_the_list(short_dir: Path, port: int) -> None:
    with supervisor(short_dir) as it, it.client() as client:
        called = f"print(say(({HOST!r}, {port})))"
        client.run(SAY, env="python", session="a", network="example.org")
        assert printed(client, "a", called) == "gaierror\n"
        assert it.run("nsm", "net", "a", "allow", f"{HOST}:{port}").returncode == 0
        assert printed(client, "a", called) == "b'hello x'\n"
        assert it.run("nsm", "net", "a", "deny", f"{HOST}:{port}").returncode == 0
        assert printed(client, "a", called) == "gaierror\n"
        refused = client.run(called.replace("print", "raise OSError"), env="python", session="a")
        assert f"refused: {HOST}" in " ".join(refused.notes)
        client.kill_all()
