"""The control socket: connections, their rights, and the operations that they may request.

outgoing        frames to one client, written at once if its socket takes them
call            one request, and the services that operations use
ops             the operations, a module for each subject
operations      the table of operations, one row each
connection      one client: its requests and their answers
server          the socket, and the check of who connects
"""
