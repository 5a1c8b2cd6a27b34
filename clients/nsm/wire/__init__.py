"""The control protocol without I/O: bytes in, messages out, and back.

From the ground up:

    errors.py      what goes wrong, as types that cross the socket
    frames.py      length prefix and CBOR, hardened: bytes <-> maps
    messages.py    the kinds of frames as values: maps <-> messages
    connection.py  the state machine of each end: which message may come when
    fields.py      how the maps that operations answer become values, field by field
    results.py     what came of code
    live.py        live sessions as rows, and what became of those to be ended
    environments.py, status.py   what there is to run in; the supervisor itself
    images.py      pictures in displays, checked
    transcripts.py what `logs` tells, and sessions that have ended
    sessions.py    what else a live session answers: completions, files

and modules for operations that few programs ask for.

Nothing here imports anything that does I/O, and nothing imports `dataclasses`: it costs 10 ms and
each class another one, a quarter of what `nsm ps` may take from start to end. Values are
`NamedTuple`s instead, in modules whose annotations are evaluated at once (`NamedTuple` compiles
those that are text); read their fields by name.
"""
