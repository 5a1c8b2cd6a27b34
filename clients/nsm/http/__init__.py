"""A small HTTP/1.1 server for trio: of the supervisor, and of `nsm e2b serve`.

listen_address.py    addresses that may be listened at
accept.py            new connections
token.py             the token, read from its file
access.py            admission of clients, by the head of a request
exchange.py          one request and its answer, for an ASGI application
bodies.py            limit of request bodies in memory
connection.py        one connection: requests one after another, each within its limits
connection_limit.py  limit of connections, and the choice of one to close for another
"""
