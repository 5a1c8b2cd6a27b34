"""MCP over HTTP: on loopback or at a Unix socket, for who has the token.

secret       the token, as its file has it at this moment
guard        who is let in, by the head of a request
exchange     one request and its answer, for an ASGI application
bodies       how much of requests is held in memory
connection   one connection: requests one after another, each within its limits
crowd        how many connections there are, and who has to go for another one
replay       what was sent, for clients whose connection broke off                       (heavy)
front        the `mcp` package's session manager on the endpoint                       (heavy)
listener     one listening socket and its connections
port         the port that is listened at, held from one supervisor to the next
service      a listener and what answers behind it, where that is configured

What is heavy is imported later and elsewhere, see `nsmd.mcp`.
"""
