#!/bin/sh
# Finds a Python that works and hands over to bootstrap.py, which makes .venv.
#
#   tools/setup.sh [--bench] [--docs] [--tests]      PYTHON=/path/to/python3 picks one
#
# Candidates are tried by running them: a pyenv shim, for instance, may be first on PATH and only
# print that no version is selected.
set -eu

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)

# works PROGRAM LOWEST HIGHEST
works() {
    "$1" -I -c "import sys; sys.exit(not ($2 <= sys.version_info[:2] <= $3))" \
        >/dev/null 2>&1 </dev/null
}

if [ -n "${PYTHON:-}" ]; then
    if ! works "$PYTHON" "(3, 11)" "(3, 99)"; then
        echo "setup: PYTHON=$PYTHON is not a Python 3.11 or newer that runs; name another one" >&2
        exit 1
    fi
    exec "$PYTHON" -I "$here/bootstrap.py" "$@"
fi

# Tested versions first, whatever python3 is; a newer one only where there is nothing else.
for highest in "(3, 13)" "(3, 99)"; do
    for candidate in python3 /usr/bin/python3 /usr/local/bin/python3 \
        python3.13 python3.12 python3.11 python3.14 python; do
        if command -v "$candidate" >/dev/null 2>&1 && works "$candidate" "(3, 11)" "$highest"; then
            exec "$candidate" -I "$here/bootstrap.py" "$@"
        fi
    done
done

echo "setup: no Python 3.11 or newer was found on PATH" >&2
echo "       install one (Debian, Ubuntu: apt-get install python3 python3-venv)" >&2
echo "       or name it: make run PYTHON=/path/to/python3" >&2
exit 1
