"""An ACP agent that does what its prompt says, a line of JSON for each step."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import json
from typing import Any

import acp
from acp.schema import EnvVariable


class Scripted(acp.Agent):
    """Calls the client's methods about terminals, and tells their results."""

    def on_connect(self, conn: Any) -> None:
        self._client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> acp.InitializeResponse:
        return acp.InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, cwd: str, **_: Any) -> acp.NewSessionResponse:
        return acp.NewSessionResponse(session_id="s1")

    async def prompt(self, prompt: list[Any], session_id: str, **_: Any) -> acp.PromptResponse:
        steps = json.loads(prompt[0].text)
        known: dict[str, str] = {}
        told: list[Any] = []
        for method, given in steps:
            arguments: dict[str, Any] = {
                key: known.get(str(value), value) for key, value in given.items()
            }
            if "env" in arguments:
                arguments["env"] = [EnvVariable(name=n, value=v) for n, v in arguments["env"]]
            try:
                result: Any = await getattr(self._client, method)(
                    session_id=session_id, **arguments
                )
            except acp.RequestError as error:
                told.append({"error": str(error), "data": error.data})
                continue
            told.append(result.model_dump(exclude_none=True) if result is not None else None)
            if method == "create_terminal" and result is not None:
                known[f"${len(known)}"] = result.terminal_id
        text = acp.update_agent_message_text(json.dumps(told))
        await self._client.session_update(session_id=session_id, update=text)
        return acp.PromptResponse(stop_reason="end_turn")


if __name__ == "__main__":
    asyncio.run(acp.run_agent(Scripted()))
