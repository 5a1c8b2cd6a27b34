"""`nsm e2b serve`: a server on this machine for the clients of E2B (docs/how-to/integrations.md).

server.py       the port, the keys, a client of the supervisor for each, and who answers a request
access.py       admission by Host, Origin, key and token
control.py      E2B's API: sandboxes are made, listed, prolonged and ended
sandboxes.py    the sandboxes of one key, which are sessions, and the most that clients can have
processes.py    processes, which are jobs
files.py        directories, watches, and contents of files
contexts.py     the code interpreter: contexts, which are jobs, and executions
in_session/     the programs of contexts
requests.py     one request and its answer, also by the Connect protocol
errors.py       refusals
"""
