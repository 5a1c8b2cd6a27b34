"""The endpoint that models see: the tool `run`, and those of the bridge.

Modules marked heavy import `mcp` and pydantic at their top, 1 to 2 s of work. Nothing that the
daemon imports at its start may import them: `attachment` does, in a thread.

attachment    one attached shim, from its first line to its end; import of the heavy modules
run_tool      the tool `run`: its description and schema, and the arguments of a call
text          valid Unicode, bounded, with the middle cut out
render        a result or an error as the text and the images that a model gets
messages      one line of JSON-RPC as a message, and back; limits of it       (heavy)
router        lines between one client and the servers of both eras           (heavy)
clients       who calls, the client's directories; the output that it gets    (heavy)
jobs          jobs that run code, and the same as tasks of MCP's extension    (heavy)
bridge_tools  the bridge's tools: description, arguments, calls               (heavy)
endpoint      the handlers: project, scope, tool list, tool call              (heavy)
"""
