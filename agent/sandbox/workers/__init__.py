"""What runs in the interpreters' own processes, together with user code.

Nothing here is defended against that code: what must hold against hostile code is the agent's
business (`sandbox.interpreters`).
"""
