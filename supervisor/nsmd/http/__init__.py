"""MCP over HTTP, for clients that have the token, and the metrics: on loopback or at a Unix socket.

`nsm.http` has the server itself. Heavy modules import `mcp`; they are imported later, in a thread
(`nsmd.mcp`).

asgi_app   the `mcp` package's session manager; sent messages, kept for clients  (heavy)
listener   one listening socket and its connections
scraping   the metrics, for Prometheus
service    a listener and its application, if HTTP is configured; the port, held across supervisors
"""
