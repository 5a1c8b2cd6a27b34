"""The Python worker: runs code in the process of a Python interpreter.

- `worker`: takes code from the agent and runs it, piece after piece.
- `event_loop`: the asyncio loop that code awaits in; threads and tasks that outlive their code.
- `displayer`: values and figures that code displays, in place of windows and browsers.
- `reporter`: standard streams of code, frames to the agent, tracebacks.
- `completion`: completion of names, without running code.
- `library`: modules, times of imports, tracers, and hooks of forks.
- `freezer`: copies of the worker that wait for an undo.
"""
