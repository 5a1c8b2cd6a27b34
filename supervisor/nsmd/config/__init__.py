"""config.toml: read, checked, and applied again when it changes.

config_file     read the file, check it, and explain each mistake
listen_address  allowed addresses of MCP over HTTP, and of ports of sessions
reload          application of a changed file in a running supervisor
"""
