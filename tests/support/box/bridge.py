"""Programs of the bridge in a world: their definitions, and what turns the bridge on."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
