"""config.toml: read, checked, and applied again when it changes.

config_file   read the file, check it, and explain each mistake
http_address  where MCP over HTTP may listen
reload        what a changed file changes under a running supervisor
"""
