"""The filter of system calls for code in jails and for agents in boxes, as a BPF program.

filter.py     what is refused, and why; the program
syscalls.py   numbers of system calls
"""

from nsm.jail.seccomp.filter import REFUSALS, Refusal, filter_program

__all__ = ["REFUSALS", "Refusal", "filter_program"]
