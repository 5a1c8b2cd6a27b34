"""Facts about the host and the caller, found without changing anything.

facts               a request, and what was found; frozen values
lookup              finds all of them
added_directories   directories that a box shows beside its working directory
agent_directories   directories that an agent's options and settings name
tools               programs on the caller's PATH, and what each needs to be shown
shims               programs that only find another one, and what is behind them
elf                 loader and interpreter that a program asks for
program_links       the system's programs by name, without those that no box runs
forbidden_programs  names of those
nix_host            what a box needs of Nix
nsm_itself          nsm's own Python, packages and programs in a box
bridge_programs     programs of the bridge that a box may start: does the bridge have them?
mcp                 nsm's entry among the MCP servers of an agent
"""
