"""Programs of the bridge in a world, and an agent of MCP in a box that asks for them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from box.attack import IN_BOX
from box.world import HOME

if TYPE_CHECKING:
    from box.world import World

ON = "[bridge]\nenabled = true\n"

TOOLS = f"{HOME}/.config/nsm/tools"

DEPLOY = """\
#!/bin/sh
printf 'deploying %s as %s\\n' "$*" "$(cat ~/.ssh/id_ed25519)"
echo "$*" >>~/deployed
"""
"""Definition with a key that no box has."""

WIPE = "#!/bin/sh\ntouch ~/wiped\necho wiped\n"


def describe(world: World, name: str, command: str, *more: str) -> None:
    lines = [f"name: {name}", f"description: Does {name}.", f"command: {command}", *more]
    text = "\n".join(["---", *lines, "---", f"# {name}", ""])
    world.write(f"{TOOLS}/{name}.md", text)


def furnish(world: World) -> None:
    """Programs of Ada's, and what describes them."""
    world.write(f"{HOME}/bin/deploy", DEPLOY, 0o755)
    world.write(f"{HOME}/bin/wipe", WIPE, 0o755)
    describe(world, "deploy", "~/bin/deploy")
    describe(world, "restart-db", "/usr/bin/printf", "allow_options: true")
    describe(world, "wipe", "~/bin/wipe")


ASKS = """\
import json, subprocess, sys
calls = [json.loads(line) for line in sys.argv[1:]]
def line(number, method, **params):
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\\n"
client = {"protocolVersion": "2025-06-18", "capabilities": {},
          "clientInfo": {"name": "test", "version": "1"}}
with subprocess.Popen(["nsm-mcp"], stdin=-1, stdout=-1, text=True) as shim:
    shim.stdin.write(line(0, "initialize", **client)
        + '{"jsonrpc": "2.0", "method": "notifications/initialized"}\\n')
    answers = {}
    for number, (method, params) in enumerate(calls, 1):
        shim.stdin.write(line(number, method, **params))
        shim.stdin.flush()
        while number not in answers:
            answer = json.loads(shim.stdout.readline())
            answers[answer.get("id")] = answer
        print(json.dumps(answers[number].get("result", answers[number])))
    shim.stdin.close()
"""
"""Makes MCP requests of nsm in the box, one after the other."""


def asked(
    world: World, *calls: tuple[str, dict[str, Any]], start: tuple[str, ...]
) -> list[dict[str, Any]]:
    """Collect the MCP answers that an agent in a box receives."""
    lines = [json.dumps(call) for call in calls]
    done = world.run(*start, IN_BOX, "-I", "-c", ASKS, *lines)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
