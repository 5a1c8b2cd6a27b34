"""Ends of a helper."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

from nsmd.host.child_processes import PACKAGES, START
from nsmd.network.secrets.grant import MODULE


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
