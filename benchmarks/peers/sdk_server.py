"""The peer: a stdio server with one tool that does nothing, made with the MCP SDK as documented."""

from __future__ import annotations

from mcp.server import MCPServer

server = MCPServer("noop")


@server.tool()
def noop() -> str:
    """Do nothing."""
    return ""


if __name__ == "__main__":
    server.run("stdio")
