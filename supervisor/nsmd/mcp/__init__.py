"""The endpoint that models see: `run`, for each attached `nsm-mcp`, and those of the bridge.

    seam         what the endpoint needs from the registry and the bridge, as protocols
    load         imports the `mcp` package in a thread, after the daemon's socket is up
    attachment   one attached shim, from its first line to its end
    attach       the first line: who attaches, checked
    numbers      of its lines, for requests that are sent again
    arguments    a call's arguments, checked by hand so that a model can act on mistakes
    describe     the tool's description and schema, from what is configured now
    programtools the same of the bridge's tools
    text         valid Unicode, bounded, cut where it hurts least
    displays     displayed values as text and as images, checked and bounded
    render       a result or an error as the text a model reads
    progress     output of a running call as notifications
    lines        the same of a program of the bridge, line by line
    shape        how much a message may be made of, seen before it is parsed
    wire         one line of JSON-RPC as a message, and back                      (heavy)
    router       lines between one client and the two server loops of its eras    (heavy)
    callers      who calls, as the SDK's context of a request has it              (heavy)
    roots        the directories that a client says it works in                   (heavy)
    outcomes     what comes of calls, waited for while the client is told of it   (heavy)
    listed       what a client was told that there is, and that it changed since  (heavy)
    programs     calls of the bridge's tools                                      (heavy)
    endpoint     the handlers: project, scope, tool list, tool call               (heavy)

Modules marked heavy import `mcp` and pydantic at their top, 1 to 2 s of work. Nothing that the
daemon imports at its start may import them: `load` does, later and elsewhere.
"""
