"""Programs that print without end, in real jails, beside somebody who works.

Each ends with a useful answer, and neither the agents nor the supervisor grow: memory is read as
the peak that the kernel kept, so that nothing between two looks is missed.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    import nsm
    from e2e_support import Supervisor
    from nsm.wire.code import RunResult

pytestmark = [pytest.mark.node, pytest.mark.slow]

LIMIT_S = 1.0

END_S = 120.0
"""Time limit for a flood that ends by itself, beside the others and on a busy machine."""

AGENT_GROWTH_KIB = 48 * 1024
"""Head and tail of two streams as bytes, as text and as the frame in which they travel."""

SUPERVISOR_GROWTH_KIB = 160 * 1024
"""The same for as many sessions as there are floods, all answered in the same moment."""


class Flood(NamedTuple):
    """A program, whether it ends by itself, and what its output begins with."""

    env: str
    code: str
    ends: bool
    begins: str


FLOODS = {
    "yes": Flood("bash", "yes", ends=False, begins="y\ny\n"),
    "print": Flood(
        "python", "while True: print('again' * 500, end=' ')", ends=False, begins="againaga"
    ),
    "no-newline": Flood(
        "python",
        "import os\nblock = b'x' * 65536\nwhile True: os.write(1, block)",
        ends=False,
        begins="xxxx",
    ),
    "zeros": Flood("bash", "head -c 256M /dev/zero", ends=True, begins="\0\0\0"),
    "node": Flood(
        "node",
        "const block = 'n'.repeat(65536); while (true) require('fs').writeSync(1, block)",
        ends=False,
        begins="nnnn",
    ),
    "both": Flood("bash", "yes out | tee /dev/stderr", ends=False, begins="out\nout\n"),
}


def ignore(_stream: str, _text: str) -> None:
    """A reader that keeps nothing."""


def peak_kib(pid: int) -> int:
    """The most memory that a process ever had."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1])
    raise AssertionError(f"no VmHWM of {pid}")


def test_floods_end_with_a_useful_answer_and_cost_nobody_memory(
    shared: Supervisor, client: nsm.Client
) -> None:
    for name, flood in FLOODS.items():
        client.run("", env=flood.env, session=name)
    client.run("said = 0", env="python", session="bystander")
    agents = {row.name: row.pid for row in client.sessions() if row.name in FLOODS}
    before = {name: peak_kib(pid) for name, pid in agents.items()}
    supervisor_before = peak_kib(shared.pid)
    answers: dict[str, RunResult] = {}

    def drown(name: str, flood: Flood) -> None:
        with shared.client() as own:
            answers[name] = own.run(
                flood.code,
                env=flood.env,
                session=name,
                timeout_s=END_S if flood.ends else LIMIT_S,
                on_output=ignore,
            )

    threads = [threading.Thread(target=drown, args=item) for item in FLOODS.items()]
    for thread in threads:
        thread.start()
    said = 0
    while any(thread.is_alive() for thread in threads):
        said += 1
        answer = client.run("said += 1; print(said)", env="python", session="bystander")
        assert answer.stdout == f"{said}\n"
    for thread in threads:
        thread.join()

    assert said > len(FLOODS), "the bystander hardly got a turn"
    for name, flood in FLOODS.items():
        answer = answers[name]
        assert answer.exit_code == (0 if flood.ends else 124), (name, answer.stderr[-300:])
        assert answer.timed_out is not flood.ends
        assert answer.stdout.startswith(flood.begins), (name, answer.stdout[:20])
        left_out = answer.truncated["stdout"]
        assert left_out.omitted_bytes > 0
        assert left_out.file is not None
        if flood.env == "bash":
            look = f"head -c {len(flood.begins)} {left_out.file}; stat -c %s {left_out.file}"
            kept = client.run(look, env="bash", session=name)
            assert kept.stdout.startswith(flood.begins)
            assert int(kept.stdout[len(flood.begins) :]) > 1024 * 1024
        growth = peak_kib(agents[name]) - before[name]
        assert growth < AGENT_GROWTH_KIB, (name, growth)
    growth = peak_kib(shared.pid) - supervisor_before
    assert growth < SUPERVISOR_GROWTH_KIB, growth
