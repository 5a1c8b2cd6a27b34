"""The control socket: connections, their rights, and the operations that they may request.

output_stream   output on its way to a client that may be slow
counted_stream  a connection whose bytes are counted
outgoing        frames to one client, written at once if its socket takes them
call            one request, and the services that operations use
ops             the operations, a module for each subject
operations      the table of operations, one row each
connection      one client: its requests and their answers
server          the socket, and the check of who connects
"""
