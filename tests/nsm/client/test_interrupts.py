"""Ctrl-C during a blocking call: the first one is a request, and none is lost."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from nsm.client.interrupts import Interrupts


def interrupt_us() -> None:
    signal.raise_signal(signal.SIGINT)


def default_handler_is_back() -> bool:
    return signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_that_nobody_was_told_of_comes_out_at_the_end() -> None:
    with pytest.raises(KeyboardInterrupt), Interrupts():
        interrupt_us()
    assert default_handler_is_back()


def test_other_signals_do_not_end_the_wait() -> None:
    ours, theirs = socket.socketpair()
    before = signal.signal(signal.SIGUSR1, lambda _number, _frame: theirs.send(b"x") and None)
    try:
        with ours, theirs, Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert interrupts.wait(ours.fileno()) is False
            assert ours.recv(1) == b"x"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_descriptors_and_the_wakeup_descriptor_are_given_back() -> None:
    read_end, write_end = os.pipe2(os.O_NONBLOCK)
    before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        open_before = set(os.listdir("/proc/self/fd"))
        with Interrupts():
            pass
        assert set(os.listdir("/proc/self/fd")) == open_before
        assert signal.set_wakeup_fd(before) == write_end
    finally:
        signal.set_wakeup_fd(before)
        os.close(read_end)
        os.close(write_end)


def test_interrupts_can_be_opened_again_with_another_descriptor() -> None:
    interrupts = Interrupts()
    for number in range(3):
        ours, theirs = socket.socketpair()
        with ours, theirs, interrupts:
            if number == 1:
                interrupt_us()
                assert interrupts.wait(ours.fileno()) is True
            theirs.send(b"x")
            assert interrupts.wait(ours.fileno()) is False
        assert default_handler_is_back()
    interrupts.close()


def test_closed_while_open_its_descriptors_stay_until_the_end() -> None:
    """They are where Python writes when a signal comes, and another's number soon."""
    open_before = set(os.listdir("/proc/self/fd"))
    interrupts = Interrupts()
    with interrupts:
        interrupts.close()
        assert set(os.listdir("/proc/self/fd")) > open_before
    assert set(os.listdir("/proc/self/fd")) == open_before
