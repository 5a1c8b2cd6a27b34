"""The Python clients. Use them by their names in `nsm`: `nsm.Client`, `nsm.AsyncClient`.

blocking.py               `Client`: one call at a time
asynchronous.py           `AsyncClient`: many calls at once, on trio
blocking_connection.py, async_connection.py   the connection of each
operations.py             arguments of operations, the same for both
files.py, async_files.py  the part of each that reads and writes files of sessions
job_calls.py, async_jobs.py   the part of each that starts and finds programs in sessions
jobs.py                   handle of such a program, and what both clients do alike
transfers.py              such a transfer, as steps that both carry out
sandbox.py, async_sandbox.py   ``client.sandbox(...)``
session_files.py          ``client.files(session)``
file_steps.py             operations on files, as steps that both carry out
local_trees.py            directories here, as archives on their way
passing.py                descriptors that come with answers
boxes.py, bridge.py, builds.py, ports.py   ``client.boxes``, ``client.bridge``, ...
projects.py               the directory that code of a client sees
retry.py                  when a call may be sent again after its connection was lost
interrupts.py             Ctrl-C while a blocking call waits
"""
