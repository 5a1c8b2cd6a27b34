"""Becoming an agent in a fork of a process that did nothing yet, as a template's sessions do."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import sandbox_agent
from agent_process import ANSWER_TIMEOUT_S, PYTHON

TEMPLATE = """
import json, os, socket, sys
sys.path.insert(0, sys.argv[1])
import sandbox_agent
import decimal  # preloaded
from sandbox.framing import MessageReader, encode_frame
sys.path.pop(0)

results = []
agent = sandbox_agent.prepare(workspace=sys.argv[2])
worker = sandbox_agent.PythonWorker()
for number in range(3):
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        fd = theirs.detach()
        sandbox_agent.serve(agent, fd, fd, prestart="python", worker=worker)
    theirs.close()
    reader = MessageReader()
    def receive():
        while (frame := reader.next_message()) is None:
            reader.receive_data(ours.recv(65536))
        return frame
    assert receive()["type"] == "ready"
    for code in (
        f"number = {number}",
        "import sys; print(number, __name__, 'decimal' in sys.modules)",
        "import random; print(random.random())",
        "import inspect; print(len(inspect.stack()))",
    ):
        ours.sendall(encode_frame(
            {"type": "execute", "id": "1", "interpreter": "python", "code": code}))
        results.append(receive()["stdout"])
    ours.close()
    assert os.waitpid(pid, 0)[1] == 0
print(json.dumps(results))
"""


def test_a_fork_becomes_an_agent(tmp_path: Path) -> None:
    folder = str(Path(sandbox_agent.__file__).parent)
    done = subprocess.run(
        [PYTHON, "-I", "-c", TEMPLATE, folder, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=ANSWER_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results[1::4] == [f"{number} __main__ True\n" for number in range(3)]
    assert len(set(results[2::4])) == 3, "each has its own random numbers"
    # User code does not sit on top of the agent's loop: the worker's few frames are all there is.
    assert all(int(depth) <= 8 for depth in results[3::4])
