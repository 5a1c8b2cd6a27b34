"""`nsm e2b serve`: a server on this machine for the clients of E2B (docs/how-to/e2b.md).

server.py       the port, the keys, and a client of the supervisor for each
settings.py     settings of `serve`: the most that clients can have
access.py       admission by Host, Origin, key and token
application.py  which handler answers a request
control.py      E2B's API: sandboxes are made, listed, prolonged and ended
sandboxes.py    the sandboxes of one key, which are sessions
networks.py     the network of a new sandbox
processes.py    processes, which are jobs
filesystem.py   directories and watches
files.py        contents of files
multipart.py    files in a form
contexts.py     the code interpreter: contexts, which are jobs, and executions
events.py       output of a context
in_session/     the programs of contexts
connect.py      the Connect protocol, in JSON
requests.py     one request and its answer
errors.py       refusals
"""
