"""The port is nobody else's while there is no supervisor."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from e2e_clients import replaced
from e2e_support import supervisor
from fake_fdstore import Held
from http_support import CONFIG, sdk_client, token_of, url_of
from httpport import END_S, UNAUTHORIZED, answer_of, asking, listening, refused, unused
from nsm.http.listen_address import Port
from nsmd.fdstore.holder_store import HolderStore
from nsmd.fdstore.running_holders import take_copies
from nsmd.http.service import HTTP_PORT, HeldPort, bound
from processes import Watched

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from e2e_support import Supervisor

ANY = Port("127.0.0.1", 0)

WAITING = 40
"""Clients that come while there is no supervisor."""


def test_the_next_supervisor_goes_on_with_the_same_socket() -> None:
    store = Held()
    first = HeldPort(store)
    with first.listen(ANY) as listener:
        port = Port(*listener.getsockname())
    assert [name for name, _ in first.everything_kept()] == [HTTP_PORT]
    kept = [os.dup(each) for each in store.held[HTTP_PORT]]
    first.forget()  # of its process; what is kept for the next one is `kept`
    with pytest.raises(OSError, match="in use") as caught:
        bound(port)
    assert caught.value.errno == errno.EADDRINUSE
    second = HeldPort(store, kept)
    with (
        socket.create_connection((port.host, port.number)) as waiting,
        second.listen(port) as listener,
    ):
        listener.setblocking(True)
        accepted, peer = listener.accept()
        accepted.close()
        assert peer == waiting.getsockname()
        assert not os.get_inheritable(listener.fileno())
    second.forget()
    assert not store.held
    bound(port).close()


@pytest.mark.parametrize(
    ("family", "host"),
    [
        (socket.AF_INET, "127.0.0.1"),
        (socket.AF_INET, "0.0.0.0"),
        (socket.AF_INET6, "::"),
        (socket.AF_INET6, "::ffff:127.0.0.1"),
    ],
)
def test_nobody_can_listen_beside_it_whatever_options_they_set(
    family: socket.AddressFamily, host: str
) -> None:
    with bound(ANY) as listener:
        number = listener.getsockname()[1]
        other = greedy(family)
        with other, pytest.raises(OSError, match="in use"):
            other.bind((host, number))
    # Nor who has bound it before, and does not listen yet.
    with greedy(family) as other:
        other.bind((host, 0))
        number = other.getsockname()[1]
        with bound(Port("127.0.0.1", number)), pytest.raises(OSError, match="in use"):
            other.listen()


def greedy(family: socket.AddressFamily) -> socket.socket:
    """Shares what it can."""
    try:
        made = socket.socket(family)
    except OSError as error:
        pytest.skip(f"not here: no such sockets ({error.strerror})")
    for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
        made.setsockopt(socket.SOL_SOCKET, option, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return made


def test_a_kept_descriptor_that_is_no_socket_is_closed() -> None:
    store = Held()
    earlier, garbage = bound(ANY), os.memfd_create("garbage")
    there = Port(*earlier.getsockname())
    store.keep(HTTP_PORT, [garbage, earlier.fileno()])
    held = HeldPort(store, [garbage, earlier.detach()])
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(garbage)
    with held.listen(there) as listener:
        assert listener.getsockname() == (there.host, there.number)
    (kept,) = store.held[HTTP_PORT]  # without the other one, where a store adds what it is given
    assert os.fstat(kept) == os.fstat(listener_of(held))
    held.forget()
    assert not store.held
    bound(there).close()


def listener_of(held: HeldPort) -> int:
    ((_, (descriptor,)),) = held.everything_kept()
    return descriptor


async def test_the_port_stays_held_when_the_holder_and_the_supervisor_are_killed(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "keeper.sock")
    store = HolderStore(path, linger_s=END_S)
    held = HeldPort(store)
    with held.listen(ANY) as listener:
        there = Port(*listener.getsockname())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.run, held.everything_kept)
        await trio.testing.wait_all_tasks_blocked()
        with Watched([store.pid]) as watched:
            os.kill(store.pid, signal.SIGKILL)
            await watched.all_ended()
        await trio.testing.wait_all_tasks_blocked()  # it has noticed
        with trio.fail_after(END_S):
            await store.caught_up()
        nursery.cancel_scope.cancel()
    held.close()
    store.close()
    refused(there.number)
    with socket.create_connection((there.host, there.number)) as waiting:
        found = take_copies(path)
        assert found is not None
        store = HolderStore(path, found=found)
        held = HeldPort(store, found.kept[HTTP_PORT])
        with held.listen(there) as listener:
            listener.setblocking(True)
            accepted, peer = listener.accept()
            accepted.close()
            assert peer == waiting.getsockname()
    held.forget()
    store.end()
    bound(there).close()


@pytest.mark.slow
@pytest.mark.jail
async def test_nobody_gets_the_port_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    with ExitStack() as stack, supervisor(tmp_path, config=CONFIG) as running:
        url, token = url_of(running), token_of(running)
        number = int(url.rsplit(":", 1)[1].split("/")[0])
        waiting: list[socket.socket] = []

        def meanwhile() -> None:
            refused(number)
            waiting.extend(stack.enter_context(asking(number)) for _ in range(WAITING))

        with replaced(running, meanwhile=meanwhile) as later:
            assert [answer_of(each) for each in waiting] == [UNAUTHORIZED] * WAITING
            assert url_of(later) == url
            async with sdk_client(url, token, "legacy") as client:
                assert [tool.name for tool in (await client.list_tools()).tools] == ["run"]
            assert later.run("nsm", "shutdown").returncode == 0
            assert later.process.poll() == 0  # not a moment later
            bound(Port("127.0.0.1", number)).close()


@pytest.mark.jail
@pytest.mark.slow  # each time, another supervisor is tried, and started
def test_reloads_that_want_another_place_free_the_one_before(tmp_path: Path) -> None:
    first, second = unused("127.0.0.1"), unused("127.0.0.1")
    path = tmp_path / "http.sock"
    with supervisor(tmp_path, config=listening(f"127.0.0.1:{first.number}")) as running:
        config = tmp_path / "config" / "nsm" / "config.toml"

        def reload(listen: str, *, free: Sequence[Port] = (), held: Port | None = None) -> None:
            config.write_text(listening(listen))
            assert running.run("nsm", "reload").returncode == 0
            facts = json.loads(running.run("nsm", "http", "--json").stdout)
            assert (facts["enabled"], bool(facts["url"])) == (listen != "", held is not None)
            heard(running)
            for port in free:
                bound(port).close()
            if held is not None:
                with asking(held.number) as client:
                    assert answer_of(client) == UNAUTHORIZED
                refused(held.number)

        reload(f"127.0.0.1:{first.number}", held=first)
        reload(f"127.0.0.1:{second.number}", held=second, free=[first])
        reload("", free=[first, second])
        reload(f"127.0.0.1:{second.number}", held=second)
        config.write_text(listening(f"unix:{path}"))
        assert running.run("nsm", "reload").returncode == 0
        heard(running)
        bound(second).close()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        reload(f"127.0.0.1:{first.number}", held=first)
        with bound(second):
            reload(f"127.0.0.1:{second.number}", free=[first])
        reload(f"127.0.0.1:{first.number}", held=first)
        config.write_text("[http]\nlisten = 7\n")  # half way
        assert running.run("nsm", "reload").returncode != 0
        refused(first.number)
        config.write_text(listening(f"127.0.0.1:{first.number}"))
        with replaced(running, meanwhile=config.unlink) as later:
            heard(later)
            bound(first).close()
            assert later.run("nsm", "shutdown").returncode == 0
            assert later.process.poll() == 0  # not a moment later
        assert not path.exists()


def heard(running: Supervisor) -> None:
    """Return once the holder, if there is one, has heard what the supervisor has told it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.settimeout(END_S)
        with suppress(FileNotFoundError):
            link.connect(str(running.directory / "keeper.sock"))
            link.send(b"count")
            assert link.recv(100).endswith(b" supervised")
