"""Helpers of secrets that send what ours does not."""

from __future__ import annotations

import os
import socket
import subprocess

import pytest
import trio

from nsmd.fdstore.store import NoStore
from nsmd.host.processes import has_ended
from nsmd.model.events import Events
from nsmd.network.secrets.grant import Grant, GrantRecord, HelperProcess

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
