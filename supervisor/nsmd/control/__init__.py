"""The control socket: who may connect, what they may ask, and how it is answered.

arguments    reading an operation's arguments, with errors for people
stream       output on its way to a client that may be slow
call         a request, and what operations work on
running      code that runs for a client
joining      operations of people who join a session
bridging     operations on programs of the host
building     operations on environments that Nix builds
filing       operations on files of a session
inspecting   all that is known of one session
recounting   what it has been through: its start, its executions, its end
operations   the table of operations: a row each, and the functions of the rest
outgoing     what goes to one client, at once where it can
connection   one client, its requests and their answers
server       the socket, and who is let in
"""
