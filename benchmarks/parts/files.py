"""Files of sessions: a gigabyte in and out beside cp, and a kilobyte beside a call."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

import nsm
from bench import Bench, connect, run_once
from measure import Comparison, Findings, Target, alternate, timer
from private_supervisor import private_supervisor

GIGABYTE = 10**9
CONFIGURATION = "[defaults]\nworkspace_mb = 2048\nmemory_mb = 4096\n"
CALLS_PER_ROUND = 20
SESSION = "files"
CALL = "a call in a live session"


def measure(bench: Bench) -> Findings:
    """Both directions. The file is in memory on both sides, as a session's workspace is."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        private_supervisor("nsm-bench-", CONFIGURATION) as variables,
        connect(variables) as client,
        tempfile.TemporaryDirectory(dir=memory) as directory,
    ):
        run_once(client, session=SESSION)
        files, place = client.files(SESSION), Path(directory)
        source, copy = place / "source", place / "copy"
        with source.open("wb") as file:
            for _ in range(GIGABYTE // 10**6):
                file.write(os.urandom(10**6))
        cp = partial(timed_cp, source, copy)
        rounds = bench.some_rounds(0.25)
        into = partial(timed_upload, client, source)
        yield Comparison(
            name="1 GB into a session",
            peer="cp",
            pairs=alternate(into, cp, rounds=rounds),
            unit="s",
            target=Target(bound="≤", value=2),
        )
        files.upload(source, "big")
        yield Comparison(
            name="1 GB out of a session",
            peer="cp",
            pairs=alternate(partial(timed_download, client, copy), cp, rounds=rounds),
            unit="s",
            target=Target(bound="≤", value=2),
        )
        files.remove("big")
        data = os.urandom(1000)
        call = timer(lambda: run_once(client, session=SESSION), calls=CALLS_PER_ROUND)
        write = timer(lambda: files.write("small", data), calls=CALLS_PER_ROUND)
        read = timer(lambda: files.read("small"), calls=CALLS_PER_ROUND)
        for name, ours in (("write a file of 1 KB", write), ("read a file of 1 KB", read)):
            yield Comparison(
                name=name,
                peer=CALL,
                pairs=alternate(ours, call, rounds=bench.rounds),
                unit="ms",
                target=Target(bound="≤", value=2),
            )


def timed_cp(source: Path, copy: Path) -> float:
    """Seconds that cp takes."""
    copy.unlink(missing_ok=True)
    began_s = time.perf_counter()
    subprocess.run(["cp", source, copy], check=True)
    return time.perf_counter() - began_s


def timed_upload(client: nsm.Client, source: Path) -> float:
    """Seconds that a file takes into the session."""
    files = client.files(SESSION)
    if files.exists("big"):
        files.remove("big")
    began_s = time.perf_counter()
    files.upload(source, "big")
    taken_s = time.perf_counter() - began_s
    files.remove("big")
    return taken_s


def timed_download(client: nsm.Client, copy: Path) -> float:
    """Seconds that a file takes out of the session."""
    copy.unlink(missing_ok=True)
    began_s = time.perf_counter()
    client.files(SESSION).download("big", copy)
    return time.perf_counter() - began_s
