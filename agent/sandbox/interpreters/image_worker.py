"""The agent's requests for workers of an image's Python (`sandbox.template.image_python`)."""

from __future__ import annotations

import _socket
import os
import struct

from sandbox.framing import from_json, to_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


ANSWER_S = 10
"""Time for the keeper to answer, which takes some milliseconds."""

NAMED = ("mnt", "ipc", "uts", "net", "cgroup", "pid", "user")
"""Namespaces of the session, in the order in which they are entered."""


READING = os.O_RDONLY | os.O_CLOEXEC


class ImageWorkers:
    """Makes workers of the image's Python, by asking the process that keeps it.

    Args:
        requests: descriptor of its socket.
        group: descriptor of the control group's `cgroup.procs`; negative without.
        variables: environment of the Python that is kept.
        once: only the first worker is a fork: code may change the image's files.
    """

    def __init__(self, requests: int, group: int, variables: Mapping[str, str], once: bool) -> None:
        self._once = once
        self._requests = requests
        self._group = group
        self._variables = variables

    def changed_variables(self) -> Mapping[str, str]:
        """Variables of the session that the new worker does not have."""
        known = self._variables
        return {name: value for name, value in os.environ.items() if known.get(name) != value}

    def fork(self, given: Sequence[int], limits: Mapping[str, int]) -> int:
        """Have a worker made; returns its process id, or 0 if it is to be started instead.

        Args:
            given: its ends of its output pipes and its control socket, and its page.
            limits: as in `hello`.
        """
        if self._requests < 0:
            return 0
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        opened: list[int] = []
        try:
            opened.extend(os.open(f"/proc/self/ns/{kind}", READING) for kind in NAMED)
            fds = [theirs.fileno(), *opened, *given]
            if self._group >= 0:
                fds.append(self._group)
            rights = struct.pack(f"{len(fds)}i", *fds)
            requests = _socket.socket(fileno=self._requests)
            try:
                control = (_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)
                requests.sendmsg([to_json({"limits": dict(limits)}).encode()], [control])
            finally:
                requests.detach()
            theirs.close()
            ours.settimeout(ANSWER_S)
            pid = from_json(ours.recv(4096).decode()).get("pid", 0)
            return pid if isinstance(pid, int) else 0
        except (OSError, ValueError):
            return 0
        finally:
            for fd in opened:
                os.close(fd)
            ours.close()
            theirs.close()
            if self._once:
                os.close(self._requests)
                self._requests = -1
