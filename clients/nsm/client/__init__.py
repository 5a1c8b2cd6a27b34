"""The Python clients. Use them by their names in `nsm`: `nsm.Client`, `nsm.AsyncClient`.

steps.py                  a method, written once for both clients
api.py, supervisor.py     the methods of both clients
blocking.py               `Client` and its connection: one call at a time
asynchronous.py           `AsyncClient` and its connection: many at once, on asyncio or trio
places.py                 where code runs: its project, and other arguments of operations
events.py                 what comes beside an answer: events before it, descriptors with it
standard_input.py, async_standard_input.py   input of code while it runs
fresh.py                  ``client.map(...)``: programs in fresh interpreters
jobs.py                   programs in sessions, and their handles
session_files.py          ``client.files(session)``
file_steps.py             what it does with files, as steps: lists, transfers, directories
local_files.py            a local file that is copied: read, or written whole or not at all
local_trees.py            local directories as tar archives, made and unpacked
replays.py                ``client.replay(...)``
sandbox.py                ``client.sandbox(...)``
shared_sandbox.py         `SharedSandbox`: for threads and asyncio tasks, in a thread of its own
host.py                   ``client.boxes``, ``client.bridge``, ``client.ports``, ``client.secrets``
environments.py           ``client.builds``, ``client.project_environments``
retry.py                  when a call may be sent again after its connection was lost
interrupts.py             Ctrl-C while a blocking call waits
"""
