"""Saves: 200 MB of arrays and of frames saved and restored, beside files of the same.

All files are in memory, so that no disk is measured. A save is synced (fsync), and so are the files
of the peers: there, that takes no time on either side.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
preload = ["numpy"]
"""

MAKE = """
import os, time
import numpy
numbers = numpy.random.default_rng(1)
prices = {name: numbers.normal(size=3_000_000) for name in "abcde"}
counts = {name: numbers.integers(0, 1000, size=3_000_000) for name in "xyz"}
"""
"""192 MB."""

MAKE_FRAMES = (
    MAKE
    + """
import pandas
prices, counts = pandas.DataFrame(prices), pandas.DataFrame(counts)
"""
)

WRITE = """
began_s = time.perf_counter()
with open("/workspace/peer", "wb") as file:
    {write}
    file.flush()
    os.fsync(file.fileno())
print(time.perf_counter() - began_s)
del file
"""

READ = """
began_s = time.perf_counter()
with open("/workspace/peer", "rb") as file:
    {read}
print(time.perf_counter() - began_s)
os.remove("/workspace/peer")
del file, found
"""
"""Reading, which removes the file: it would be in the save, too."""


class Peer(NamedTuple):
    """A way to write what a session has.

    Attributes:
        name: of the file, for people.
        load: statement that loads what both need.
        write, read: statements.
    """

    name: str
    load: str
    write: str
    read: str


PICKLE = Peer(
    "a pickle",
    "import pickle",
    "pickle.dump((prices, counts), file, protocol=5)",
    "found = pickle.load(file)",
)
PARQUET = Peer(
    "parquet files",
    "import io, pyarrow.parquet\n"
    "def read_frames(data):\n"  # a function, so that no copy of the data stays
    "    parts = data[: lengths[0]], data[lengths[0] :]\n"
    "    return [pandas.read_parquet(io.BytesIO(part)) for part in parts]",
    "lengths = []\n"
    "    for frame in prices, counts:\n"
    "        frame.to_parquet(file)\n"
    "        lengths.append(file.tell())",
    "found = read_frames(file.read())",
)


def measure(bench: Bench) -> Findings:
    """Both directions, for arrays and for frames."""
    if importlib.util.find_spec("numpy") is None:
        yield LeftOut(what="saving and restoring 200 MB", why="numpy is not installed")
        return
    yield from compared(bench, "numpy arrays", MAKE, [PICKLE])
    missing = [name for name in ("pandas", "pyarrow") if importlib.util.find_spec(name) is None]
    if missing:
        why = f"not installed: {', '.join(missing)}"
        yield LeftOut(what="saving and restoring 200 MB of pandas frames", why=why)
        return
    yield from compared(bench, "pandas frames", MAKE_FRAMES, [PICKLE, PARQUET])


def compared(bench: Bench, kind: str, make: str, peers: Sequence[Peer]) -> Findings:
    """Save and restore a session that has something, beside each peer."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        private_supervisor("nsm-bench-", CONFIGURATION) as variables,
        connect(variables) as client,
        tempfile.TemporaryDirectory(dir=memory) as directory,
    ):
        run(client, make)
        for peer in peers:
            run(client, peer.load)
        path = Path(directory) / "work.nsmsave"
        sides = [partial(timed_save, client, path), partial(timed_restore, client, path)]
        for peer in peers:
            sides += [
                partial(timed_run, client, WRITE.format(write=peer.write)),
                partial(timed_run, client, READ.format(read=peer.read)),
            ]
        # Not forwards and backwards: what is read has to be written before.
        taken = [[side() for side in sides] for _ in range(bench.some_rounds(0.25) + 1)][1:]
        for number, peer in enumerate(peers, 1):
            for name, verb, place in (("save", "writing", 0), ("restore", "reading", 1)):
                yield Comparison(
                    name=f"{name} a session with 192 MB of {kind}",
                    peer=f"{verb} {peer.name} of them in the session",
                    pairs=tuple((row[place], row[2 * number + place]) for row in taken),
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
