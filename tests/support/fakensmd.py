"""Stands in for `python -m nsmd` where starting a supervisor is tested.

`test_start` copies it to `nsmd/__main__.py` in a directory that PYTHONPATH names. NSM_FAKE says
what it does, NSM_FAKE_FIFO where it says that it listens (both are passed on, as NSM_ is). Each
start is noted beside the socket. A connection that sends `end` ends it.
"""

from __future__ import annotations

import json
import os
import socket
import sys

ready = int(sys.argv[sys.argv.index("--ready-fd") + 1])
path = os.environ["NSM_SOCKET"]
behaviour = os.environ.get("NSM_FAKE", "serve")

facts = {
    "pid": os.getpid(),
    "session": os.getsid(0),
    "cwd": os.getcwd(),
    "umask": os.umask(0o077),
    "stdin": os.readlink("/proc/self/fd/0"),
    "stdout": os.readlink("/proc/self/fd/1"),
    "stderr": os.readlink("/proc/self/fd/2"),
    "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd")),
    "ready": ready,
    "argv": sys.orig_argv,
    "environment": dict(os.environ),
}
with open(path + ".starts", "a", encoding="utf-8") as starts:
    starts.write(json.dumps(facts) + "\n")

if behaviour == "fail":
    os.write(ready, b"configuration: no such key\n")
    sys.exit(1)
if behaviour == "die":
    sys.exit(1)
if behaviour == "crash":
    raise ImportError("a module is broken")
if behaviour == "shortage":
    os.write(ready, b"too many open files\n")
    sys.exit(75)
if behaviour == "be killed":
    os.kill(os.getpid(), 9)
if behaviour == "lie":
    os.write(ready, b"\n")
    sys.exit(0)

listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen(64)
if fifo := os.environ.get("NSM_FAKE_FIFO"):
    with open(fifo, "w", encoding="utf-8") as listening:
        listening.write("listening")
if behaviour != "hang":
    os.write(ready, b"\n")
    os.close(ready)
while True:
    connection, _ = listener.accept()
    word = connection.recv(16)
    if word == b"end":
        os.unlink(path)
        connection.close()
        break
    connection.sendall(word + b" from %d" % os.getpid())
    connection.close()
