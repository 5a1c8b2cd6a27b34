"""`nsm box` and `claudebox`: an agent's command line in a bubblewrap jail. A map; no module
imports a later one.

plan         what a box is: mounts, variables, network, command; frozen values, no I/O
own          nsm itself in a box
mcp          nsm among the MCP servers of an agent in a box
inside       what is first in a box whose command cannot be started as it is; a file of its own
"""
