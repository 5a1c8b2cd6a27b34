"""Facts about the host and the caller, found without changing anything.

facts               a request, and what was found; frozen values
lookup              finds all of them
added_directories   directories that a box shows beside its working directory
tools               programs on the caller's PATH, and what each needs to be shown
program_links       the system's programs by name, without those that no box runs
nix_host            what a box needs of Nix
nsm_itself          nsm's own Python, packages and programs in a box
bridge_programs     programs of the bridge that a box may start: does the bridge have them?
mcp                 nsm's entry among the MCP servers of an agent
"""
