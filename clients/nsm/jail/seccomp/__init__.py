"""Filters of system calls, as BPF programs: one for code in jails and agents in boxes, and one for
brokers.

syscalls.py       numbers of system calls
filter.py         instructions of such programs; what code is refused, and why
brokers.py        what brokers are permitted
"""

from nsm.jail.seccomp.filter import REFUSALS, Refusal, filter_program

__all__ = ["REFUSALS", "Refusal", "filter_program"]
