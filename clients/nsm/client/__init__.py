"""The Python clients. Use them by their names in `nsm`: `nsm.Client`, `nsm.AsyncClient`.

steps.py                  a method, written once for both clients
api.py, supervisor.py     the methods of both clients
blocking.py               `Client`: one call at a time
asynchronous.py           `AsyncClient`: many calls at once, on asyncio or trio
blocking_connection.py, async_connection.py   the connection of each
projects.py               the directory that code of a client sees
places.py                 arguments of operations that run code
events.py                 callbacks for what comes before an answer
standard_input.py, async_standard_input.py   input of code while it runs
jobs.py                   programs in sessions, and their handles
session_files.py          ``client.files(session)``
file_steps.py             lists, files in memory, copies of directories
transfers.py              transfers of files
local_files.py            a local file that is copied: read, or written whole or not at all
local_trees.py            local directories as tar archives, made and unpacked
streamed_archives.py      archives over connections that pass no descriptors
replays.py                ``client.replay(...)``
sandbox.py                ``client.sandbox(...)``
shared_sandbox.py         `SharedSandbox`: a sandbox for threads and asyncio tasks
background.py             the thread in which trio runs for those
passing.py                descriptors that come with answers
boxes.py, bridge.py, builds.py, ports.py, secrets.py   ``client.boxes``, ``client.bridge``, ...
project_environments.py   ``client.project_environments``
retry.py                  when a call may be sent again after its connection was lost
interrupts.py             Ctrl-C while a blocking call waits
"""
