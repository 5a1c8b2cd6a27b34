"""Programs of the interpreters' own processes, which run together with user code.

Nothing here is defended against that code: what must hold against hostile code is the agent's
business (`sandbox.interpreters`).

- `python`: the package that a Python interpreter runs.
- `node`: the parts of the program that Node runs; `sandbox.interpreters.framed` has their order.
- `bash`: what a shell is sent.
"""
