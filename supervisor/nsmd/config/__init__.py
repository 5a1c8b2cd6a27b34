"""config.toml: read, checked, and applied again when it changes.

config_file   read the file, check it, and explain each mistake
http_address  allowed addresses of MCP over HTTP
reload        application of a changed file in a running supervisor
"""
