"""Facts of the kernel about a process, and where they break a policy's promise."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fakes import spec
from nsmd.control.ops.kernel_facts import KernelFacts, contradictions, kernel_facts, weaker
from nsmd.model.policy import policy_of
from nsmd.model.values import Enforcement, SessionLimits

KEPT = KernelFacts(
    uid=1001, capabilities="0" * 16, no_new_privs=True, system_call_filter=True, cgroup=""
)

POLICY = policy_of(spec(), SessionLimits(), "cold")

BECOME = """
import ctypes, sys
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
print(flush=True)
sys.stdin.read()
"""


def test_a_process_of_ours() -> None:
    facts = kernel_facts(os.getpid())
    assert facts is not None
    assert facts.uid == os.geteuid()
    with subprocess.Popen(
        [sys.executable, "-I", "-c", BECOME], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        confined = kernel_facts(child.pid)
    assert confined is not None
    assert confined.no_new_privs
    assert confined.cgroup == facts.cgroup


def test_sets_are_taken_together(tmp_path: Path) -> None:
    sets = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), "0" * 16)
    sets["CapBnd"] = "0000000000000400"
    lines = [f"{name}:\t{value}" for name, value in sets.items()]
    lines += ["Uid:\t0\t1001\t0\t0", "NoNewPrivs:\t0", "Seccomp:\t2"]
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("\n".join(lines))
    (tmp_path / "7" / "cgroup").write_text("3:cpu:/x\n0::/user.slice/s\n")
    assert kernel_facts(7, str(tmp_path)) == KernelFacts(
        uid=1001,
        capabilities="0000000000000400",
        no_new_privs=False,
        system_call_filter=True,
        cgroup="/user.slice/s",
    )


def test_a_process_that_is_gone(tmp_path: Path) -> None:
    assert kernel_facts(7, str(tmp_path)) is None


def test_what_holds_contradicts_nothing() -> None:
    assert list(contradictions(POLICY, KEPT)) == []


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(KEPT, capabilities="0000000000000400"), "capabilities"),
        (replace(KEPT, no_new_privs=False), "gain privileges"),
        (replace(KEPT, system_call_filter=False), "not filtered"),
        (replace(KEPT, uid=0), "root"),
    ],
)
def test_what_does_not_hold_is_said(facts: KernelFacts, words: str) -> None:
    (said,) = contradictions(POLICY, facts)
    assert words in said
    assert list(contradictions(replace(POLICY, complete=False), facts)) == []


def test_a_limit_that_something_else_keeps_is_said() -> None:
    kept = SessionLimits().enforcement
    assert list(weaker(POLICY, kept)) == []
    (said,) = weaker(POLICY, replace(kept, processes="none", why="no group"))
    assert said == ("The limit on processes is kept by none, and should be by rlimit: no group.")
    grouped = SessionLimits(
        enforcement=Enforcement(memory="cgroup", processes="cgroup", cpu="cgroup")
    )
    assert len(list(weaker(policy_of(spec(), grouped, "cold"), kept))) == 3
