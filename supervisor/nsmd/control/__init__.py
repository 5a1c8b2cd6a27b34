"""The control socket: who may connect, what they may ask, and how it is answered.

arguments    reading an operation's arguments, with errors for people
stream       output on its way to a client that may be slow
operations   the table of operations: a row and a function each
server       the socket, its connections and their requests
"""
