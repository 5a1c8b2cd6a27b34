"""`nsm box` and `claudebox`: an agent's command line in a bubblewrap jail. A map; no module
imports a later one.

plan         what a box is: mounts, variables, network, command; frozen values, no I/O
own          nsm itself in a box
mcp          nsm among the MCP servers of an agent in a box
inside       what is first in a box whose command cannot be started as it is; a file of its own
secrets      which paths no box shows, and where no box begins
gitfacts     the repository of a working directory; who commits
opening      sources of mounts, opened so that no link can exchange them
protect      what the host would run later, and a box must not change
"""
