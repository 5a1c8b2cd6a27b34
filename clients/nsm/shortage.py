"""Shortages of the machine: what fails for them may succeed a moment later. Standard library only.

They say nothing about what was tried: no jail, program or configuration is at fault.
"""

from __future__ import annotations

import errno

SHORTAGES = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""Errors of system calls when processes, memory or descriptors are short."""

EXIT_TEMPORARY = 75
"""Exit code of a supervisor that could not start, and may soon: EX_TEMPFAIL of sysexits.h."""
