"""MCP over HTTP: on loopback or at a Unix socket, for who has the token.

secret       the token, as its file has it at this moment
guard        who is let in, by the head of a request
exchange     one request and its answer, for an ASGI application
connection   one connection: requests one after another, each within its limits
crowd        how many connections there are, and who has to go for another one
front        the `mcp` package's session manager on the endpoint                       (heavy)
service      listens, and puts the parts together

What is heavy is imported later and elsewhere, see `nsmd.mcp`.
"""
