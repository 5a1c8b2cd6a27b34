"""The pipe on which bwrap tells of a jail, when nobody is there to hear it."""

from __future__ import annotations

import os
import subprocess

import pytest

from nsmd.jail.starting import open_info_pipe
from realjail import needs_bwrap

RUN_TIMEOUT_S = 30


def test_its_end_is_seen() -> None:
    ours, theirs = open_info_pipe()
    try:
        os.write(theirs, b"{}")
        os.close(theirs)
        assert [os.read(ours, 10) for _ in range(2)] == [b"{}", b""]
    finally:
        os.close(ours)
    assert not os.path.exists(f"/proc/self/fd/{theirs}")


@needs_bwrap
@pytest.mark.jail
def test_a_jail_that_nobody_waits_for_any_more_starts_and_ends() -> None:
    """A pipe that breaks would kill bwrap, and its child would wait for good."""
    ours, theirs = open_info_pipe()
    os.close(ours)
    try:
        done = subprocess.run(
            [
                "bwrap",
                "--unshare-all",
                "--ro-bind",
                "/",
                "/",
                "--info-fd",
                str(theirs),
                "echo",
                "x",
            ],
            pass_fds=[theirs],
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_TIMEOUT_S,
        )
    finally:
        os.close(theirs)
    assert (done.returncode, done.stdout, done.stderr) == (0, "x\n", "")
