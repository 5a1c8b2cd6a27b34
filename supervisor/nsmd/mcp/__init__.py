"""The endpoint that models see: the tool `run`, and those of the bridge.

Modules marked heavy import `mcp` and pydantic at their top, 1 to 2 s of work. Nothing that the
daemon imports at its start may import them: `load` does, in a thread.

interfaces     interfaces of the run service and the bridge, as the endpoint needs them
load           import the `mcp` package in a thread, once the control socket is up
attachment     one attached shim, from its first line to its end
attach         check of the first line, with the client's entry
line_numbers   numbers of a shim's lines, for requests that are sent again
arguments      a call's arguments, checked by hand so that a model can act on mistakes
describe       the tool's description and schema, from the present configuration
bridge_schema  the same for the bridge's tools
text           valid Unicode, bounded, with the middle cut out
jobs           jobs that run code, and what they have printed since
displays       displayed values as text and images, checked and bounded
render         a result or an error as the text that a model reads
progress       output of a running call as notifications
output_lines   the same for a program of the bridge, line by line
json_limits    limits of a message's size and depth, checked before parsing
wire           one line of JSON-RPC as a message, and back              (heavy)
router         lines between one client and the servers of both eras    (heavy)
callers        the caller, from the SDK's request context               (heavy)
roots          the directories that a client says it works in           (heavy)
outcomes       wait for a call's result while the client gets progress  (heavy)
listed         the environments that a client knows, and changes        (heavy)
bridge_tools   calls of the bridge's tools                              (heavy)
tasks          the same jobs as tasks of MCP's extension                (heavy)
endpoint       the handlers: project, scope, tool list, tool call       (heavy)
"""
