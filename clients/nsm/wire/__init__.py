"""The control protocol without I/O: bytes in, messages out, and back.

From the ground up:

    errors.py       what goes wrong, as types that cross the socket
    frames.py       length prefix and CBOR, hardened: bytes <-> maps
    tuples.py       `NamedTuple`, cheap to import
    messages.py     the kinds of frames as values: maps <-> messages; which may come when
    decode.py       plain values become the values that annotations describe
    operation.py    descriptions of operations, which both ends use

and a module for what operations of one kind take and answer:

    sessions.py     live sessions as rows; `nsm ps` needs no more
    code.py         code and sessions: operations, where and how code runs, results
    files.py        files of sessions; files that they have changed in projects
    fresh.py        programs in fresh interpreters of sessions
    jobs.py         programs in sessions
    transcripts.py  logs; sessions that have ended
    inspection.py   rules of one session, and what it may reach
    environments.py   what there is to run in, what nsm builds, what lies in a project
    host.py         ports, secrets, programs of the bridge, boxes
    status.py       the supervisor, and its ways to make room for another one
    telemetry.py    its figures, events and spares
    images.py       pictures in displays, checked

Nothing here imports anything that does I/O, and nothing imports `dataclasses`: it costs 10 ms and
each class another one, a quarter of what `nsm ps` may take from start to end. Values are
`NamedTuple`s instead; read their fields by name.
"""
