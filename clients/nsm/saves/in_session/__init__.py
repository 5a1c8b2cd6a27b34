"""Programs that nsm copies into a session to save or restore it. They run there, and nowhere else.

Each is one file for the session's own interpreter: Bash 4.4 and newer, Node 18 and newer, or Python
3.9 and newer with the standard library and a copy of cloudpickle beside it. Code in the session may
have replaced whatever they use, so nobody outside believes what they say; they can only harm the
session.

    python_common.py    helpers of the next two, which run in one module with each
    python_save.py      write the state of a Python session into files
    python_restore.py   restore it from them
    bash_save.sh        write the state of a Bash session into files
    bash_restore.sh     restore it from them
    node_save.js        write the state of a Node session into files
    node_restore.js     restore it from them
"""
