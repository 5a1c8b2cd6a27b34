"""A small HTTP/1.1 server for trio: of the supervisor, and of `nsm e2b serve`.

listen_address.py  addresses that may be listened at
listening.py       new connections, the limit of their number, and the choice of one to close
token.py           the token, read from its file
access.py          admission of clients, by the head of a request
connection.py      one connection: requests one after another, each within its limits
"""
