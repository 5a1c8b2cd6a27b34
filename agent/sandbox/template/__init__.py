"""The template: a process with a Python that is up already, from which sessions are forked.

`sandbox_template.py` is its entry. It imports what code usually imports, and then does nothing but
fork. Code of users runs only in the forks, never in this process.

- `server`: waits for requests, and forks; has the fonts listed.
- `session`: what a fork does until it is an agent.
- `mounts`: file systems of one session.
- `preloading`: modules that are imported before any fork.
- `image_python`: the Python of an image beside the template, and the model for its workers.
- `kernel`: calls that Python has no functions for.
"""
