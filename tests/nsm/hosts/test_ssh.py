"""Errors of ssh, as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nsm.hosts import ssh
from nsm.hosts.address import RemoteHost
from nsm.wire.errors import HostUnreachableError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("echo 'Port forwarding failed' >&2; exit 255", "Port forwarding failed"),
        ("exit 255", "it did not say why"),
        ("exec sleep 1000", "the process of the connection has not answered for "),
    ],
)
def test_what_cannot_be_forwarded(
    does: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what happened and what to do next, with a command to copy."""
    monkeypatch.setattr(ssh, "_MUX_TIMEOUT_S", 0.2)
    program = tmp_path / "ssh"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    host = RemoteHost("big", "big.example.org", user="me", ssh=(str(program),))
    with pytest.raises(HostUnreachableError) as caught:
        ssh.SshConnection(host, str(tmp_path)).forward("/run/here", "/run/there")
    assert caught.value.message.startswith(f"ssh could not forward /run/here to big: {said}")
    command = f"`{program} -S {tmp_path}/ssh -O exit -l me -- big.example.org`"
    assert command in (caught.value.hint or "")
    assert f"{tmp_path}/ssh.log" in (caught.value.hint or "")
