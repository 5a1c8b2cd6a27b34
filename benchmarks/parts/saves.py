"""Saves: 200 MB of arrays saved and restored, beside a pickle of the same."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import nsm
from bench import Bench, connect
from measure import Comparison, Findings, LeftOut, Target
from nsm.saves import Saves
from private_supervisor import private_supervisor

ENVIRONMENT = "arrays"
SESSION, RESTORED = "saved", "restored"
CONFIGURATION = f"""\
[defaults]
memory_mb = 4096
workspace_mb = 1024
tmp_mb = 1024
[environments.{ENVIRONMENT}]
preset = "python"
interpreter = "{sys.executable}"
preload = ["numpy", "pickle"]
"""

MAKE = """
import os, pickle, time
import numpy
numbers = numpy.random.default_rng(1)
prices = {name: numbers.normal(size=3_000_000) for name in "abcde"}
counts = {name: numbers.integers(0, 1000, size=3_000_000) for name in "xyz"}
"""
"""192 MB: columns as frames of pandas have them."""

WRITE = """
began_s = time.perf_counter()
with open("/workspace/peer", "wb") as file:
    pickle.dump((prices, counts), file, protocol=5)
print(time.perf_counter() - began_s)
del file
"""

READ = """
began_s = time.perf_counter()
with open("/workspace/peer", "rb") as file:
    found = pickle.load(file)
print(time.perf_counter() - began_s)
os.remove("/workspace/peer")
del file, found
"""


def measure(bench: Bench) -> Findings:
    """Both directions. All files are in memory, so that no disk is measured."""
    if importlib.util.find_spec("numpy") is None:
        yield LeftOut(what="saving and restoring 200 MB", why="numpy is not installed")
        return
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        private_supervisor("nsm-bench-", CONFIGURATION) as variables,
        connect(variables) as client,
        tempfile.TemporaryDirectory(dir=memory) as directory,
    ):
        run(client, MAKE)
        path = Path(directory) / "work.nsmsave"
        sides = [
            partial(timed_run, client, WRITE),
            partial(timed_save, client, path),
            partial(timed_run, client, READ),
            partial(timed_restore, client, path),
        ]
        # Not forwards and backwards: what is read has to be written before.
        taken = [[side() for side in sides] for _ in range(bench.some_rounds(0.25) + 1)][1:]
        for name, verb, place in (("save", "writing", 0), ("restore", "reading", 2)):
            yield Comparison(
                name=f"{name} a session with 192 MB of numpy arrays",
                peer=f"{verb} a pickle of them in the session",
                pairs=tuple((row[place + 1], row[place]) for row in taken),
                unit="s",
                target=Target(bound="≤", value=2.5),
            )
        client.kill([SESSION])


def run(client: nsm.Client, code: str) -> str:
    """Run code in the session, which has to succeed; returns what it printed."""
    result = client.run(code, env=ENVIRONMENT, session=SESSION)
    assert result.exit_code == 0, result
    return result.stdout


def timed_run(client: nsm.Client, code: str) -> float:
    """Seconds that code says it took."""
    return float(run(client, code))


def timed_save(client: nsm.Client, path: Path) -> float:
    """Seconds that a save takes."""
    began_s = time.perf_counter()
    saved = Saves(client).save(SESSION, str(path))
    taken_s = time.perf_counter() - began_s
    assert {"prices", "counts"} <= set(saved.names), saved
    return taken_s


def timed_restore(client: nsm.Client, path: Path) -> float:
    """Seconds until the variables are there in a new session."""
    began_s = time.perf_counter()
    restored = Saves(client).restore(str(path), RESTORED, env=ENVIRONMENT)
    taken_s = time.perf_counter() - began_s
    assert all(row.restored for row in restored.rows), restored
    client.kill([RESTORED])
    return taken_s
