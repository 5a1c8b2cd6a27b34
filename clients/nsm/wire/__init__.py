"""The control protocol without I/O: bytes in, messages out, and back.

From the ground up:

    errors.py       what goes wrong, as types that cross the socket
    frames.py       length prefix and CBOR, hardened: bytes <-> maps
    messages.py     the kinds of frames as values: maps <-> messages
    connection.py   the state machine of each end: which message may come when
    decode.py       plain values become the values that annotations describe
    answers.py      the same for what operations answer
    operation.py    descriptions of operations, which both ends use

and a module for what each operation takes and answers:

    run.py          code and sessions: operations, and where and how code runs
    results.py      their answers: what came of code
    live.py         live sessions, and those that were ended or forked
    sessions.py     completions, and whether code is complete
    files.py        files of sessions
    programs.py, jobs.py   programs in sessions: operations, and what they answer
    sandbox.py      sessions with settings of their own
    transcripts.py  logs; sessions that have ended
    inspection.py, network.py, changes.py   of one session: all, network, changed files
    secrets.py      secrets, and who has them
    ports.py        ports of sessions that are open on the host
    environments.py, builds.py   what there is to run in; what nsm builds
    project_environments.py   environments that lie in a project
    status.py, pool.py, telemetry.py   the supervisor: itself, spares, figures and events
    drain.py, reload.py   its ways to make room for another one
    boxes.py, bridge.py   boxes; programs of the host
    images.py       pictures in displays, checked
    languages.py    names of languages

Nothing here imports anything that does I/O, and nothing imports `dataclasses`: it costs 10 ms and
each class another one, a quarter of what `nsm ps` may take from start to end. Values are
`NamedTuple`s instead, in modules whose annotations are evaluated at once (`NamedTuple` compiles
those that are text); read their fields by name.
"""
