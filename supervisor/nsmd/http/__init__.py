"""MCP over HTTP, for clients that have the token, and the metrics: on loopback or at a Unix socket.

Heavy modules import `mcp`; they are imported later, in a thread, see `nsmd.mcp`.

token             the token, as its file has it now
access            who is let in, by the head of a request
exchange          one request and its answer, for an ASGI application
bodies            how much of requests is held in memory
connection        one connection: requests one after another, each within its limits
connection_limit  how many connections there may be, and which one is closed for another
replay            what was sent, for clients whose connection broke             (heavy)
asgi_app          the `mcp` package's session manager in front of the endpoint  (heavy)
listener          one listening socket and its connections
held_port         the port, held from one supervisor to the next
scraping          the metrics, for Prometheus
service           a listener and its application, where HTTP is configured
"""
