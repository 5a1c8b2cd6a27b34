"""The Python clients. Use them by their names in `nsm`: `nsm.Client`, `nsm.AsyncClient`.

blocking.py               `Client`: one call at a time
asynchronous.py           `AsyncClient`: many calls at once, on trio
blocking_connection.py, async_connection.py   the connection of each
operations.py             arguments of operations, the same for both
job_calls.py, async_jobs.py   the part of each that starts and finds jobs
jobs.py                   handles of jobs, and what both clients need for them
files.py, async_files.py  the part of each that reads and writes files of sessions
session_files.py          ``client.files(session)``
file_steps.py             operations on files, as steps that both clients carry out
transfers.py              transfers of files, as such steps
local_trees.py            local directories as tar archives, made and unpacked
sandbox.py, async_sandbox.py   ``client.sandbox(...)``
passing.py                descriptors that come with answers
boxes.py, bridge.py, builds.py, ports.py   ``client.boxes``, ``client.bridge``, ...
projects.py               the directory that code of a client sees
retry.py                  when a call may be sent again after its connection was lost
interrupts.py             Ctrl-C while a blocking call waits
"""
