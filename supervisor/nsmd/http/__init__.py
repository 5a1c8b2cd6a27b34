"""MCP over HTTP, for clients that have the token, and the metrics: on loopback or at a Unix socket.

`nsm.http` has the server itself. Heavy modules import `mcp`; they are imported later, in a thread
(`nsmd.mcp`).

replay     sent messages, for clients whose connection broke             (heavy)
asgi_app   the `mcp` package's session manager in front of the endpoint  (heavy)
listener   one listening socket and its connections
held_port  the port, held from one supervisor to the next
scraping   the metrics, for Prometheus
service    a listener and its application, if HTTP is configured
"""
