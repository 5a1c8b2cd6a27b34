"""`nsm box` and `claudebox`: an agent's command line in a bubblewrap jail. A map; no module
imports a later one.

plan         what a box is: mounts, variables, network, command; frozen values, no I/O
masking      which values people are shown
settings     `[box]` of the configuration
profile      kinds of boxes: the files of `profiles/`
elf          which loader and interpreter a program asks for
forbidden    names of programs that no box runs
nixhost      what a box needs of Nix
own          nsm itself in a box
mcp          nsm among the MCP servers of an agent in a box
inside       what is first in a box whose command cannot be started as it is; a file of its own
ownplaces    where nsm keeps its own things on the host, which no box may change
secrets      which paths no box shows, and where no box begins
gitfacts     the repository of a working directory; who commits
opening      sources of mounts, opened so that no link can exchange them
hostrun      names of what the host runs by itself
protect      what the host would run later, and a box must not change
gitlinks     submodules by the index of a repository
aftermath    what a box has left that git on the host would run
links        the system's programs, but those that no box runs, by name
facts        what was asked for, and what was found; frozen values, no I/O
shims        programs that only find another one, and what is behind them
tools        programs on the caller's PATH, and what each needs to be shown
lookup       finds the facts
planning     from these two to a plan; pure
bwrap        a plan as arguments of bwrap
dryrun       a plan as a command to read and paste
programs     programs of the host that a box is to start: whether the bridge has them
relay        passes signals on to the command of a box, and ends as the box ends
launch       starts the jail, and waits for it
seatbelt     a plan as a profile for macOS, and what has to be made before it; pure
macos        becomes that, or prints it
run          all of it in order
front        words of `claudebox` and `nsm box` to what is asked for; errors to exit codes
claudebox    the program
"""
