"""The Python worker: runs code in the process of a Python interpreter.

- `worker`: takes code from the agent and runs it, piece after piece.
- `event_loop`: the asyncio loop that code awaits in.
- `unfinished`: threads and tasks that outlive their code.
- `displayer`: values and figures that code displays.
- `shows`: changes of libraries that show values elsewhere, so that they display them here.
- `pretty`: text of containers, over lines and bounded.
- `reporter`: tracebacks, without the worker's own frames.
- `completion`: completion of names, without running code.
- `import_timer`: times that imports take.
- `tracing`: tracers and profilers of code, which see no frame of the worker.
- `library`: modules of the standard library, whatever lies in the working directory, and new ones.
- `freezer`: copies of the worker that wait for an undo.
- `fork_hooks`: what libraries want to have called around a fork.
- `streams`: standard streams of code.
- `outbox`: frames to the agent.
"""
