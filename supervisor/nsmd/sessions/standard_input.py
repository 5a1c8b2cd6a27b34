"""Standard input of code: bytes that a client sends while its code runs."""

from __future__ import annotations

import base64
import math
from typing import Any

from nsm.wire.errors import BadRequestError
from nsmd.agent_link.frames import InputFrame
from nsmd.sessions.session import Session


async def write_input(
    session: Session, execution_id: str, offset: int, data: bytes, *, eof: bool
) -> tuple[int, bool]:
    """Give code input; returns when there was room for it, or the code has ended.

    The agent leaves out what it has already, by the offset: whoever is not sure whether input
    arrived sends it again.

    Args:
        offset: bytes of input before this.
        eof: nothing follows.

    Returns:
        The offset of what comes next, and whether more is taken.

    Raises:
        BadRequestError: the code runs without input.
        NsmError: the session has ended.
    """
    execution = session.runs.find(execution_id)
    if execution is None:
        return offset, False
    if not execution.request.stdin:
        raise BadRequestError(
            f"Execution {execution_id[:200]!r} has no standard input.",
            hint="Run the code with `stdin`.",
        )
    await execution.wait_sent()
    agent_id = session.runs.agent_id_of(execution)
    if not agent_id:
        return offset, False
    frame: dict[str, Any] = {
        "type": "input",
        "id": session.requests.new_id(),
        "execution": agent_id,
        "offset": offset,
        "data": base64.b64encode(data).decode(),
        "eof": eof,
    }
    # There is an answer once the code has ended, which has a time limit.
    answer = await session.requests.ask("execute.stdin", frame, (InputFrame,), math.inf)
    assert isinstance(answer, InputFrame), "nothing else was asked for"
    execution.input_ended = execution.input_ended or eof
    return answer.offset, answer.open
