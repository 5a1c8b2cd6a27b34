"""The Python clients. Use them by their names in `nsm`: `nsm.Client`, `nsm.AsyncClient`.

blocking.py               `Client`: one call at a time
asynchronous.py           `AsyncClient`: many calls at once, on trio
blocking_connection.py, async_connection.py   the connection of each
operations.py             arguments of operations, the same for both
steps.py, async_steps.py  how each carries out what takes several operations
run_calls.py, async_run_calls.py   the part of each that runs code
standard_input.py, async_standard_input.py   input of code while it runs
job_calls.py, async_jobs.py   the part of each that starts and finds jobs
jobs.py                   handles of jobs of the blocking client
job_steps.py              operations on jobs, as steps that both clients carry out
file_calls.py, async_file_calls.py   the part of each that reads and writes files of sessions
session_files.py, async_session_files.py   ``client.files(session)``
file_steps.py             operations on files, as steps
transfers.py              transfers of files, as steps
local_files.py            a local file that is copied: read, or written whole or not at all
local_trees.py            local directories as tar archives, made and unpacked
replays.py                ``client.replay(...)``, as steps
sandbox.py, async_sandbox.py   ``client.sandbox(...)``
shared_sandbox.py         `SharedSandbox`: a sandbox for threads and asyncio tasks
background.py             the thread in which trio runs for those
passing.py                descriptors that come with answers
streamed_archives.py      archives over connections that pass no descriptors
boxes.py, bridge.py, builds.py, ports.py, secrets.py   ``client.boxes``, ``client.bridge``, ...
project_environments.py   ``client.project_environments``
projects.py               the directory that code of a client sees
retry.py                  when a call may be sent again after its connection was lost
interrupts.py             Ctrl-C while a blocking call waits
"""
