"""The filter of system calls, run by an interpreter of BPF. Real jails are in tests/isolation."""

from __future__ import annotations

import errno
import platform
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bpf import ALLOW, ERRNO, KILL_PROCESS, TRACE, Call, check, run
from nsm.jail.seccomp import REFUSALS, brokers, filter_program, syscalls

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
TABLES = {"x86_64": syscalls.X86_64, "aarch64": syscalls.AARCH64}
JUDGED = {
    *("clone", "unshare", "prlimit64", "ioctl", "fcntl", "personality", "socket", "socketpair"),
    *("mmap", "memfd_create", "shmget", "prctl", "setsockopt", "ptrace", "setns", "seccomp"),
    *("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"),
    *("setpriority", "ioprio_set"),
}
"""Calls whose arguments decide."""

MACHINES = pytest.mark.parametrize("machine", TABLES)
UPPER = 1 << 32
"""Bits that the kernel does not look at where it takes an int."""


@cache
def program(machine: str) -> bytes:
    made = filter_program(machine)
    assert made is not None
    return made


def verdict(machine: str, name: str, *arguments: int) -> int:
    call = Call(
        number=TABLES[machine][name], architecture=ARCHITECTURES[machine], arguments=arguments
    )
    return run(program(machine), call)


def refused(error: int) -> int:
    return ERRNO | error


@MACHINES
def test_every_listed_call_is_refused(machine: str) -> None:
    for refusal in REFUSALS:
        for name in refusal.calls:
            if name in TABLES[machine]:
                assert verdict(machine, name, 1, 2, 3) == refused(refusal.error), name


@MACHINES
def test_every_call_of_the_table_is_refused_or_judged(machine: str) -> None:
    """Neither a number that nothing uses nor a call whose number was forgotten."""
    listed = {name for refusal in REFUSALS for name in refusal.calls}
    assert not listed & JUDGED
    assert set(TABLES[machine]) <= listed | JUDGED
    assert len(set(TABLES[machine].values())) == len(TABLES[machine])
    forgotten = (listed | JUDGED) - set(TABLES[machine])
    old = {"uselib", "modify_ldt", "_sysctl", "iopl", "ioperm"}
    old |= {"create_module", "get_kernel_syms", "query_module", "ustat"}
    assert forgotten == {"x86_64": set[str](), "aarch64": old}[machine]


@MACHINES
@pytest.mark.parametrize("argument", [0, 1, 0x5412, 2**64 - 1], ids=hex)
def test_every_other_call_is_let_through(machine: str, argument: int) -> None:
    for number in set(range(syscalls.NEWEST + 1)) - set(TABLES[machine].values()):
        arguments = [argument] * 6
        call = Call(number=number, architecture=ARCHITECTURES[machine], arguments=arguments)
        assert run(program(machine), call) == ALLOW


@MACHINES
@given(number=st.integers(syscalls.NEWEST + 1, 2**32 - 1))
def test_calls_that_nobody_has_looked_at_are_not_there(machine: str, number: int) -> None:
    """x32, at bit 30, among them."""
    call = Call(number=number, architecture=ARCHITECTURES[machine])
    assert run(program(machine), call) == refused(errno.ENOSYS)


@MACHINES
@given(number=st.integers(0, 2**32 - 1), architecture=st.integers(0, 2**32 - 1))
def test_a_foreign_architecture_ends_the_process(
    machine: str, number: int, architecture: int
) -> None:
    for foreign in {architecture, 0x40000003, 0x40000028} - {ARCHITECTURES[machine]}:
        assert run(program(machine), Call(number=number, architecture=foreign)) == KILL_PROCESS


CLONE_THREAD_OF_LIBC = 0x3D0F00
CLONE_OF_FORK = 0x1200011
CLONE_OF_VFORK = 0x4111


@MACHINES
def test_clone_makes_threads_and_processes_but_no_namespaces(machine: str) -> None:
    for flags in (CLONE_THREAD_OF_LIBC, CLONE_OF_FORK, CLONE_OF_VFORK, 17):
        assert verdict(machine, "clone", flags) == ALLOW
        for bit in (0x20000, *(1 << n for n in range(25, 31))):
            assert verdict(machine, "clone", flags | bit) == refused(errno.EPERM)
            assert verdict(machine, "clone", flags | bit | UPPER) == refused(errno.EPERM)


@MACHINES
@given(flags=st.integers(0, 2**64 - 1))
def test_unshare_stops_sharing_what_threads_share(machine: str, flags: int) -> None:
    harmless = 0x200 | 0x400 | 0x40000
    expected = ALLOW if not flags & ~harmless else refused(errno.EPERM)
    assert verdict(machine, "unshare", flags) == expected
    assert verdict(machine, "unshare", flags & harmless) == ALLOW


@MACHINES
def test_limits_of_others_may_be_read(machine: str) -> None:
    new = 0x7FFD_0000_1000
    assert verdict(machine, "prlimit64", 0, 7, new, 0) == ALLOW
    assert verdict(machine, "prlimit64", UPPER, 7, new, 0) == ALLOW
    assert verdict(machine, "prlimit64", 1, 7, 0, new) == ALLOW
    for pointer in (new, 1, UPPER):
        assert verdict(machine, "prlimit64", 1, 7, pointer, 0) == refused(errno.EPERM)


@MACHINES
@pytest.mark.parametrize("name", ["TIOCSTI", "TIOCLINUX", "TIOCCONS", "TIOCSETD"])
def test_terminals_are_only_written_to(machine: str, name: str) -> None:
    request = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C, "TIOCCONS": 0x541D, "TIOCSETD": 0x5423}[name]
    for upper in (0, UPPER, 0xFFFFFFFF << 32):
        assert verdict(machine, "ioctl", 0, request | upper) == refused(errno.EPERM)
    assert verdict(machine, "ioctl", 0x5412, 0x5413) == ALLOW  # TIOCGWINSZ


@MACHINES
def test_no_leases(machine: str) -> None:
    for command in (1024, 1024 | UPPER, 1040):
        assert verdict(machine, "fcntl", 3, command, 0) == refused(errno.EPERM)
    for command in (0, 1, 2, 3, 4, 6, 7, 37, 1030, 1031, 1033):
        assert verdict(machine, "fcntl", 1024, command, 1024) == ALLOW


@MACHINES
def test_no_socket_lingers_and_programs_do_not_notice(machine: str) -> None:
    for upper in (0, UPPER):
        assert verdict(machine, "setsockopt", 3, 1 | upper, 13 | upper, 0, 8) == refused(0)
    for level, option in ((1, 2), (1, 12), (1, 14), (1, 15), (0, 13), (41, 13)):
        assert verdict(machine, "setsockopt", 3, level, option, 0, 8) == ALLOW
    assert verdict(machine, "setsockopt", 13, 6, 1, 13, 1) == ALLOW


SOCKET_OPTIONS = {
    1: {*range(1, 200)} - {26, 50, 51, 52},  # BPF
    6: {*range(1, 100)}
    - {11, 13, 14, 15, *range(19, 23), 24, 26, 28, 29, 31, 32, 33, 35}
    - set(range(38, 100)),
    17: {1, 101, 102, 103, 104},
}
"""Options that are let through, by their level."""


@MACHINES
def test_sockets_are_not_given_to_other_parts_of_the_kernel(machine: str) -> None:
    for upper in (0, UPPER):
        for level, permitted in SOCKET_OPTIONS.items():
            for option in {*range(1, 200)} - {13}:
                expected = ALLOW if option in permitted else refused(errno.ENOPROTOOPT)
                told = verdict(machine, "setsockopt", 3, level | upper, option | upper, 0, 4)
                assert told == expected, (level, option)
        for level in {*range(300)} - {0, 1, 6, 17, 41, 270}:
            told = verdict(machine, "setsockopt", 3, level | upper, 1, 0, 4)
            assert told == refused(errno.ENOPROTOOPT), level


@MACHINES
def test_ioctls_that_load_modules_or_set_keys_of_the_host(machine: str) -> None:
    bridges, vlans = (0x8940, 0x8941, *range(0x89A0, 0x89A4)), (0x8982, 0x8983)
    for request in (*bridges, *vlans, 0xC0506617, 0xC0406618, 0xC0406619):
        for upper in (0, UPPER):
            assert verdict(machine, "ioctl", 3, request | upper, 0) == refused(errno.EPERM)
    for request in (0x8912, 0x8913, 0x8927, 0x541B, 0x5421, 0x80086601):
        assert verdict(machine, "ioctl", 3, request, 0) == ALLOW


@MACHINES
@given(other=st.integers(1, 2**32 - 1), upper=st.integers(0, 2**32 - 1))
def test_a_process_schedules_no_other(machine: str, other: int, upper: int) -> None:
    """Threads have numbers, too, and cannot be told from forks: for these it is pretended."""
    above = upper << 32
    for name in ("sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr"):
        assert verdict(machine, name, above, 0, 0) == ALLOW
        assert verdict(machine, name, other | above, 0, 0) == refused(0)
    for name, own, all_of_a_user in (("setpriority", (0, 1), 2), ("ioprio_set", (1, 2), 3)):
        for kind in own:
            assert verdict(machine, name, kind | above, above, 5) == ALLOW
            assert verdict(machine, name, kind | above, other | above, 5) == refused(0)
        assert verdict(machine, name, all_of_a_user | above, 0, 5) == refused(0)


@MACHINES
def test_no_listener_is_asked_about_calls(machine: str) -> None:
    for flags in (0x8, 0x28, 0x8 | UPPER, 0xFF):
        assert verdict(machine, "seccomp", 1, flags, 0) == refused(errno.EINVAL)
    for operation, flags in ((0, 0), (1, 0), (1, 1), (1, 0x17), (2, 0), (3, 0)):
        assert verdict(machine, "seccomp", operation, flags, 0) == ALLOW


@MACHINES
def test_huge_pages_are_the_machine_s(machine: str) -> None:
    sizes = (0, 21 << 26, 30 << 26)  # as asked for; that of x86's two sizes
    for place, name, flag, others in (
        (3, "mmap", 0x40000, (0x1, 0x2, 0x22, 0x20022, 0x100022)),
        (1, "memfd_create", 0x4, (0, 0x1, 0x3, 0x13)),
        (2, "shmget", 0o4000, (0, 0o666, 0o3666, 0o10000)),
    ):
        before = [1 << 40 | 0xFFFFFFFF] * place
        for flags in others:
            assert verdict(machine, name, *before, flags) == ALLOW
            for size in sizes:
                for upper in (0, UPPER):
                    asked = flags | flag | size | upper
                    assert verdict(machine, name, *before, asked) == refused(errno.EPERM)


@MACHINES
def test_prctl_leaves_other_processors_alone(machine: str) -> None:
    for upper in (0, UPPER):
        assert verdict(machine, "prctl", 62 | upper, 1) == refused(errno.EPERM)
    for option in (*range(62), *range(63, 80), 0x59616D61):
        assert verdict(machine, "prctl", option, 62) == ALLOW


@MACHINES
def test_nobody_in_a_jail_becomes_a_tracer_who_allows_setns(machine: str) -> None:
    assert verdict(machine, "setns", 3, 0) == TRACE
    for request in (0x4200, 0x4206):  # PTRACE_SETOPTIONS, PTRACE_SEIZE
        for upper in (0, UPPER):
            for options in (0x80, 0xFF, 0x80 | 0x100000, 0x80 | upper, 0x200000):
                asked = verdict(machine, "ptrace", request | upper, 5, 0, options)
                assert asked == refused(errno.EPERM)
        for options in (0, 0x7F, 0x100000):
            assert verdict(machine, "ptrace", request, 5, 0, options) == ALLOW


@MACHINES
def test_tracers_make_the_requests_of_debuggers(machine: str) -> None:
    permitted = {*range(10), 12, 13, 14, 15, 16, 17, 18, 19, 24, 25, 30, *range(0x4201, 0x4206)}
    permitted |= {0x4207, 0x4208, 0x420E}
    # Among the others: OLDSETOPTIONS, SYSEMU, SINGLEBLOCK, those of CRIU.
    for request in {*range(100), *range(0x4201, 0x4300)} - {0x4206}:
        for upper in (0, UPPER):
            asked = verdict(machine, "ptrace", request | upper, 5, 0, 0x80)
            assert asked == (ALLOW if request in permitted else refused(errno.EIO)), hex(request)


@MACHINES
def test_personalities(machine: str) -> None:
    for persona in (0, 0x40000, 0xFFFFFFFF, -1):
        assert verdict(machine, "personality", persona) == ALLOW
    for persona in (8, 0x20000, 0x400000, 0x100000, 0x40008, 0xFFFFFFFE):
        assert verdict(machine, "personality", persona) == refused(errno.EPERM)


FLAGS = 0o2000000 | 0o4000
"""SOCK_CLOEXEC, SOCK_NONBLOCK"""


@MACHINES
def test_sockets(machine: str) -> None:
    for family in (2, 10):
        for kind, protocol in ((1, 0), (1, 6), (2, 0), (2, 17), (2, 1), (2, 58), (3, 1)):
            assert verdict(machine, "socket", family, kind | FLAGS, protocol) == ALLOW
        # SCTP, MPTCP, SMC, L2TP, and what does not go together
        for kind, protocol in ((1, 132), (1, 262), (1, 256), (2, 115), (1, 17), (2, 6)):
            assert verdict(machine, "socket", family, kind | FLAGS, protocol) == refused(
                errno.EPROTONOSUPPORT
            )
        for kind in (0, 4, 5, 6, 10):
            assert verdict(machine, "socket", family, kind | FLAGS, 0) == refused(
                errno.ESOCKTNOSUPPORT
            )
    for kind in (1, 2, 5):
        assert verdict(machine, "socket", 1, kind | FLAGS, 0) == ALLOW
        assert verdict(machine, "socketpair", 1, kind | FLAGS, 0) == ALLOW
    assert verdict(machine, "socket", 16, 3 | FLAGS, 0) == ALLOW
    for protocol in range(1, 32):
        assert verdict(machine, "socket", 16, 3 | FLAGS, protocol) == refused(errno.EPROTONOSUPPORT)


@MACHINES
@given(family=st.integers(0, 2**32 - 1), upper=st.integers(0, 2**32 - 1))
def test_no_other_family(machine: str, family: int, upper: int) -> None:
    for tried in {family, family % 64} - {1}:
        argument = tried | upper << 32
        if tried not in {2, 10, 16}:
            assert verdict(machine, "socket", argument, 1, 0) == refused(errno.EAFNOSUPPORT)
        assert verdict(machine, "socketpair", argument, 1, 0) == refused(errno.EAFNOSUPPORT)


@MACHINES
def test_the_kernel_remembers_what_is_always_let_through(machine: str) -> None:
    """The look-ahead knows these instructions, and loads of the number and the architecture."""
    codes = {code for code, *_ in check(program(machine))}
    assert codes <= {0x20, 0x15, 0x35, 0x45, 0x05, 0x54, 0x06}
    call = Call(number=63, architecture=ARCHITECTURES[machine], arguments=[1] * 6)
    assert run(program(machine), call) == ALLOW


@pytest.mark.parametrize("machine", ["i686", "riscv64", "armv7l", "aarch64_be", "ppc64le", ""])
def test_there_is_none_for_other_machines(machine: str) -> None:
    assert filter_program(machine) is None
    assert brokers.broker_program(machine, memory_files=True) is None


def broker_verdict(machine: str, number: int, *arguments: int, files: bool = False) -> int:
    made = brokers.broker_program(machine, memory_files=files)
    assert made is not None
    call = Call(number=number, architecture=ARCHITECTURES[machine], arguments=arguments)
    return run(made, call)


JUDGED_OF_BROKERS = {
    # What is permitted, and what is refused.
    "mmap": ((0, 4096, 3), (0, 4096, 4)),
    "mprotect": ((1, 4096, 1), (1, 4096, 5)),
    "sendto": ((3, 1, 1, 0, 0, 0), (3, 1, 1, 0, UPPER, 16)),
    "fcntl": ((3, 4), (3, 8)),  # F_SETFL, F_SETOWN
    "ioctl": ((3, 0x5421), (3, 0x8902)),  # FIONBIO, SIOCSPGRP
    "setsockopt": ((3, 6, 1), (3, 6, 31)),  # TCP_NODELAY, TCP_ULP
    "newfstatat": ((3, 1, 1, 0x1000), (-100, 1, 1, 0)),
}


@MACHINES
@pytest.mark.parametrize("files", [False, True])
def test_brokers_make_the_calls_of_their_list(machine: str, files: bool) -> None:
    numbers = brokers.numbers_of(machine)
    of_files = {"openat", "memfd_create"}
    for name, number in numbers.items():
        permitted, judged = JUDGED_OF_BROKERS.get(name, ((), None))
        expected = refused(errno.EPERM) if name in of_files and not files else ALLOW
        assert broker_verdict(machine, number, *permitted, files=files) == expected, name
        if judged is not None:
            told = broker_verdict(machine, number, *judged, files=files)
            assert told == refused(errno.EPERM), name
    for number in {*range(600), 0x40000000} - {*numbers.values()}:
        assert broker_verdict(machine, number, files=files) == refused(errno.EPERM)
    made = brokers.broker_program(machine, memory_files=files)
    assert made is not None
    assert run(made, Call(number=0, architecture=0x40000003)) == KILL_PROCESS


@MACHINES
def test_brokers_open_files_for_reading_only(machine: str) -> None:
    number = brokers.numbers_of(machine)["openat"]
    assert broker_verdict(machine, number, -100, 1, 0o2000000, files=True) == ALLOW
    for flags in (1, 2, 0o100, 0o1000, 0o10000000, 0o200000, 0o20200000):
        told = broker_verdict(machine, number, -100, 1, flags, files=True)
        assert told == refused(errno.EPERM), oct(flags)


HEADERS = {"x86_64": "asm/unistd_64.h", "aarch64": "asm-generic/unistd.h"}
GENERIC = """\
#define __ARCH_WANT_SET_GET_RLIMIT
#define __ARCH_WANT_SYS_CLONE3
#define __ARCH_WANT_NEW_STAT
#define __BITS_PER_LONG 64
"""
"""Definitions of arm64's own header before it includes the generic one."""


@MACHINES
def test_the_numbers_are_the_kernels(machine: str, tmp_path: Path) -> None:
    if machine != "aarch64" and machine != platform.machine():
        pytest.skip(f"not here: the headers of {machine} are on such machines only")
    source = tmp_path / "numbers.c"
    source.write_text(f"{GENERIC}#include <{HEADERS[machine]}>\n")
    try:
        told = subprocess.run(
            ["cc", "-E", "-dM", str(source)], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"not here: the kernel headers: {error}")
    numbers = dict(re.findall(r"^#define __NR(?:3264)?_(\w+) (\d+)$", told.stdout, re.MULTILINE))
    if machine == "aarch64":
        numbers["newfstatat"] = numbers["fstatat"]
    table = {**brokers.numbers_of(machine), **TABLES[machine]}
    known = {name: number for name, number in table.items() if name in numbers}
    assert {name: int(numbers[name]) for name in known} == known
    assert len(known) > 50
    # Headers are older than the table, whose newest calls have the same numbers everywhere.
    # The generic ones have memfd_secret where an architecture asks for it, as arm64 does since 6.6.
    unknown = set(table) - set(known) - {"memfd_secret"}
    assert all(table[name] > 450 for name in unknown)
