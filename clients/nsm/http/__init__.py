"""A small HTTP/1.1 server for trio: of the supervisor, and of `nsm e2b serve`.

listen_address.py  addresses that may be listened at
listening.py       new connections, the limit of their number, and the choice of one to close
token.py           the token, read from its file
access.py          admission of clients, by the head of a request
connection.py      one connection: requests one after another, each within its limits

The guard must see a request's head before its body is read, and every wait must have a limit. The
server that ASGI applications use on trio, hypercorn, fails both: a client that reads nothing holds
it for ever, HTTP/2 can't be turned off, and the number of connections has no limit. uvicorn needs
asyncio. So this server does what its applications need of HTTP/1.1, on h11.
"""
