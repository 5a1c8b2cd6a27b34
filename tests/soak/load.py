"""How much the soaks do, and work beside their faults."""

from __future__ import annotations

import os
import secrets
import threading
from collections import Counter
from typing import TYPE_CHECKING

import nsm

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

MINUTES = float(os.environ.get("SOAK_MINUTES", "3"))

FULL_MINUTES = 10
"""`SOAK_MINUTES` from which on a soak makes all of its faults."""

PAUSE_S = 0.05
"""Time before the next try if there is no supervisor."""

END_S = 60.0


def scaled(faults: int) -> int:
    """How many of so many faults fit into `SOAK_MINUTES`."""
    return max(5, round(faults * min(1.0, MINUTES / FULL_MINUTES)))


class Load:
    """While its block lasts, threads run one-shots without a pause.

    An answer has to be that of its own code. Errors of nsm are counted: a supervisor or a session
    may be killed.

    Attributes:
        counts: `ok`, and the codes of errors.
    """

    def __init__(self, socket: str, threads: int = 2) -> None:
        self.counts: Counter[str] = Counter()
        self._socket = socket
        self._over = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._work) for _ in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _: object, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(END_S)
        assert not any(thread.is_alive() for thread in self._threads), "a one-shot hangs"
        print(f"one-shots beside: {dict(self.counts)}")
        if self._failures and kind is None:
            raise self._failures[0]

    def _work(self) -> None:
        while not self._over.is_set():
            try:
                with nsm.Client(
                    socket_path=self._socket, autostart=False, reconnect=False
                ) as client:
                    while not self._over.is_set():
                        self._one_shot(client)
            except nsm.NsmError as error:
                self.counts[error.code] += 1
                self._over.wait(PAUSE_S)
            except BaseException as error:  # noqa: BLE001  # told by the main thread
                self._failures.append(error)
                return

    def _one_shot(self, client: nsm.Client) -> None:
        token = secrets.token_hex(8)
        result = client.run(f"print('{token}')", env="python")
        assert (result.stdout, result.exit_code) == (f"{token}\n", 0), result
        self.counts["ok"] += 1
