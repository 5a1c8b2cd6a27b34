"""Functions that libraries want to have called around a fork."""

from __future__ import annotations

import contextlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


FOR_THREADS = ("logging", "threading")
"""Modules whose fork hooks only reset locks that another thread may have held at the fork."""


def steps_of_fork(
    hooks: Sequence[Mapping[str, Callable[[], object]]],
) -> Sequence[Callable[[], object]]:
    """Functions that a fork would have run in the child, in its order, but for those of locks.

    Locks need no reset where the parent had one thread, which held none. Functions to run before a
    fork may take locks that those to run after it release.

    Args:
        hooks: arguments of `os.register_at_fork`.
    """
    missed = [
        hook
        for hook in hooks
        if getattr(hook.get("after_in_child"), "__module__", "") not in FOR_THREADS
    ]
    before = [hook.get("before") for hook in reversed(missed)]
    steps = (*before, *(hook.get("after_in_child") for hook in missed))
    return [step for step in steps if step is not None]


def adopt_fork_hooks(
    hooks: Sequence[Mapping[str, Callable[[], object]]], steps: Sequence[Callable[[], object]]
) -> None:
    """Register functions to run around later forks, and run those that the last fork left out.

    Args:
        hooks: arguments of `os.register_at_fork`.
        steps: from `steps_of_fork`.
    """
    for hook in hooks:
        os.register_at_fork(**hook)
    for step in steps:
        try:
            step()
        except BaseException:  # noqa: S112  # as a fork does
            continue
    threading = sys.modules.get("threading")
    if threading is not None:
        with contextlib.suppress(AttributeError):
            threading.main_thread()._set_native_id()  # noqa: SLF001
