"""MCP over HTTP, for clients that have the token, and the metrics: on loopback or at a Unix socket.

Heavy modules import `mcp`; they are imported later, in a thread (`nsmd.mcp`).

token             the token, read from its file
access            admission of clients, by the head of a request
exchange          one request and its answer, for an ASGI application
bodies            limit of request bodies in memory
connection        one connection: requests one after another, each within its limits
connection_limit  limit of connections, and the choice of one to close for another
replay            sent messages, for clients whose connection broke             (heavy)
asgi_app          the `mcp` package's session manager in front of the endpoint  (heavy)
listener          one listening socket and its connections
held_port         the port, held from one supervisor to the next
scraping          the metrics, for Prometheus
service           a listener and its application, if HTTP is configured
"""
