"""Helpers of secrets: those that send what ours does not, and their ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest
import trio
import trio.testing

from nsmd.fdstore import records
from nsmd.fdstore.holder import memory_file
from nsmd.fdstore.records import KeptEntries
from nsmd.fdstore.store import NoStore
from nsmd.host.child_processes import PACKAGES, START
from nsmd.host.processes import has_ended
from nsmd.model.events import Events
from nsmd.network.secrets.grant import GRANT, MODULE, Grant, GrantRecord, HelperProcess
from nsmd.network.secrets.service import SecretService

REQUEST = b'"host": "a.test", "port": 443, "method": "GET", "path": "/"'


@pytest.mark.parametrize(
    "message",
    [
        b"nonsense",
        b"[" * 200_000,
        b"[]",
        b'{"op": "used"}',
        b'{"op": "other", %s}' % REQUEST,
        b'{"op": "used", %s, "secrets": "key"}' % REQUEST,
        b'{"op": "used", %s, "secrets": ["another"]}' % REQUEST,
        b'{"op": "refused", %s, "why": 1}' % REQUEST,
    ],
)
def test_a_helper_that_sends_a_wrong_message_is_ended(message: bytes) -> None:
    record = GrantRecord(
        owner="s", secrets=(), certificate="", stand_ins={"key": "x"}, control="", state=""
    )
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    async def use(pid: int) -> None:
        helper, seen = HelperProcess.taken_up(os.pidfd_open(pid), its.detach()), os.pidfd_open(pid)
        state = os.memfd_create("state")
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                grant = Grant(
                    record, helper, state, store=NoStore(), events=Events(), nursery=nursery
                )
                ours.send(b'{"op": "used", %s, "secrets": ["key"]}' % REQUEST)
                ours.send(message)
                await trio.lowlevel.wait_readable(seen)
                assert grant.uses == {"key": 1}
                grant.end()
        assert has_ended(seen)
        os.close(seen)

    with ours, subprocess.Popen(["sleep", "infinity"]) as process:
        try:
            trio.run(use, process.pid)
        finally:
            process.kill()


def test_helpers_of_sessions_that_have_ended_meanwhile_are_ended() -> None:
    """Each is gone before its messages are waited for."""

    async def use(pids: list[int]) -> None:
        service = SecretService(store=NoStore(), events=Events())
        kept: dict[str, list[int]] = {}
        for pid in pids:
            ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.close()
            state = os.memfd_create("state")
            record = GrantRecord(
                owner=f"s{pid}",
                secrets=(),
                certificate="",
                stand_ins={},
                control=records.identity(its.fileno()),
                state=records.identity(state),
            )
            file = memory_file(records.encode(record))
            kept[GRANT + record.owner] = [file, os.pidfd_open(pid), its.detach(), state]
        service.take_up(KeptEntries(NoStore(), kept))
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                await nursery.start(service.serve, set[str])
                for pid in pids:
                    await service.wait_taken_up(f"s{pid}")
                    assert service.held_by(f"s{pid}") is None
                await trio.testing.wait_all_tasks_blocked()
                nursery.cancel_scope.cancel()

    processes = [subprocess.Popen(["sleep", "infinity"]) for _ in range(2)]
    try:
        trio.run(use, [process.pid for process in processes])
        assert [process.wait(60) for process in processes] == [-signal.SIGKILL] * 2
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_helper_ends_if_the_supervisor_has_gone_before_it_is_ready() -> None:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        state = os.memfd_create("state")
        begin = {"op": "begin", "secrets": [], "request_rules": ["GET https://a.example/*"]}
        socket.send_fds(ours, [json.dumps(begin).encode()], [state])
        os.close(state)
        ours.close()
        program = [sys.executable, "-I", "-c", START.format(MODULE), PACKAGES]
        assert subprocess.run(program, stdin=its.fileno(), check=False).returncode == 0
