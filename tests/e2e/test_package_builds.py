"""Builds of packages, and what happens to their supervisor meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from e2e_support import descendants, supervisor, wait_gone
from packageindex import IndexHandler, index_server
from realjail import needs_bwrap

pytestmark = [pytest.mark.jail, needs_bwrap]


def test_the_jail_of_a_build_ends_with_a_killed_supervisor(short_dir: Path) -> None:
    asked, over = threading.Event(), threading.Event()

    def hang(_: IndexHandler) -> None:
        asked.set()
        over.wait()

    with index_server(None) as index:
        index.handlers["/simple/demo/"] = hang
        variables = {"PIP_INDEX_URL": index.url("/simple", "127.0.0.1")}
        with supervisor(short_dir, variables=variables) as it, it.client() as client:
            client.builds.add_packages("demo", pip=["demo"], wait=False)
            assert asked.wait(60)
            tools = [
                pid
                for pid in descendants(it.pid)
                if b"/run/nsm/tool/uv\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
            assert tools
            held = [os.pidfd_open(pid) for pid in tools]
            for each in held:  # so that none ends because it has no network any more
                signal.pidfd_send_signal(each, signal.SIGSTOP)
            os.kill(it.pid, signal.SIGKILL)
            wait_gone(held)
            over.set()
