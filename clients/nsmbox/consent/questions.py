"""Questions to whoever sits at the terminal, each with yes or no; answers are remembered."""

from __future__ import annotations

from contextlib import ExitStack

from nsmbox.consent import answers
from nsmbox.consent.confirm import MAX_QUESTIONS, Terminal

_ANSWERS = {"y": True, "yes": True, "n": False, "no": False, "": False}


def answer(directory: str, question: str, text: str, *, ask: bool) -> bool | None:
    """The answer to a question about a directory: an earlier one, else the person's.

    Args:
        directory: the working directory.
        question: tells questions about it apart.
        text: what the person reads; lines that are fit to be shown, the last one the question.
        ask: a person may be asked.

    Returns:
        None if there is no answer, and nobody can be asked.

    Raises:
        KeyboardInterrupt: they pressed Ctrl-C.
    """
    earlier = answers.find(directory, question)
    if earlier is not None or not ask:
        return earlier
    with ExitStack() as closing:
        terminal = Terminal.find(closing)
        if terminal is None:
            return None
        for _ in range(MAX_QUESTIONS):
            terminal.forget_typed()
            terminal.write(f"{text} [y]es   [n]o: ")
            typed = _ANSWERS.get(terminal.read_line())
            if typed is None:
                terminal.write("Please type y or n, and Enter.\n")
                continue
            try:
                answers.remember(directory, question, yes=typed)
            except OSError as error:
                terminal.write(f"nsm: the answer cannot be kept: {error.strerror}\n")
            return typed
    return False
