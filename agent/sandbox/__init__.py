"""The agent: what runs inside a jail, starts interpreters and runs code in them.

`sandbox_agent.py` beside this package is its entry, which speaks the protocol of
`docs/contributing/agent-protocol.md`. User code never runs in the agent's process: each interpreter
is a child in a session of its own, with a pipe each for its stdout and stderr and a private control
socket. One thread, one poll loop, no call that waits for a peer: whatever an interpreter or the
supervisor does, the end of the supervisor's channel is noticed at once, and then the agent ends
and, being PID 1, takes everything with it.

Standard library only, Python 3.9 or newer. What travels into a jail is one file, which `bundle`
makes of an entry and the modules that it imports. So among them top-level names are unique, modules
import each other's names at the top only and without `as`, and only `workers` looks at its
`__file__`.

- `interpreters`: the agent's side of each interpreter. A new interpreter begins there.
- `workers`: what runs in the interpreters' own processes.
- `tracing`: stopped processes that are brought into the namespaces of a session.
- `template`: the process that sessions are forked from, whose entry is `sandbox_template.py`.
- `agent`: requests of the supervisor, and who answers them.
- `session`: the channel to the supervisor, and what all parts of the agent share.
- `execution`: pieces of code that run, from a request to its result; set-ups before them.
- `runners`: agents below this one, which run programs in fresh interpreters.
- `stopping`: how code is stopped, and fork bombs that it leaves behind are.
- `checkpoints`: states of a session after its last calls, and undo.
- `file_states`: files as they were, for checkpoints.
- `overlay_layers`: undo in an overlay, whose changes lie in a layer of their own.
- `completions`: questions to an interpreter: is a text whole, how could it go on, fork.
- `jobs`: programs that run beside the interpreters, and requests about them.
- `job`: one of them: its process, its input.
- `input`: input of jobs and executions, which waits for its reader.
- `job_start`: how a program is started, and why it is not.
- `job_output`: what jobs print, bounded, in memory and in a file.
- `processes`: processes as /proc shows them, whose each one is, and how they are killed.
- `capture`: output of interpreters: what a reply has room for, files for the rest, displays.
- `transfers`: requests about files, and files that the supervisor has open.
- `files`: one file that is read or written.
- `archives`: the process that archives, unpacks or removes a directory.
- `watches`: changes of files that the supervisor is told.
- `paths`: paths in the session, and which files are refused.
- `limits`: limits of a session and of its processes.
- `polling`: the poll loop, and streams that never block.
- `names`: allowed hosts by name, for programs that know no proxy.
- `ports`: connections to the session's ports, for a relay outside.
- `certificates`: certificates that programs of the session trust.
- `framing`: bytes to messages and back, capabilities, and fields of requests; the supervisor uses
  it, too.
- `shared_page`: memory that the agent shares with a Python worker.
- `linux`: calls of Linux and the C library, variables and GPUs of a process.
- `bundle`: makes one file of an entry and what it imports.
"""
