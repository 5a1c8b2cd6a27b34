#!/bin/sh
# pyright runs on node. Its wheel would download one where there is none; we never do that.
set -eu
if command -v node >/dev/null 2>&1; then
    exec .venv/bin/pyright --pythonpath .venv/bin/python
fi
if [ -n "${CI:-}" ]; then
    echo "pyright: node is missing, and CI needs it (Debian, Ubuntu: apt-get install nodejs)" >&2
    exit 1
fi
echo "pyright: left out, node is missing (mypy has checked the types)" >&2
