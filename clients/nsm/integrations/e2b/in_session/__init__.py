"""Programs that run inside sandboxes, one for each context: they keep the state of its code.

    python_context.py  Python, with plots and displayed values
    node_context.js    JavaScript, by the inspector of Node
    bash_context.sh    Bash

A request is a line of JSON on standard input (for Bash, its fields in base64). Code writes to
standard output and standard error as it likes. What the program itself has to tell comes between,
in lines that begin with U+001E and the token of the request (`nsm.integrations.e2b.events`).
"""
