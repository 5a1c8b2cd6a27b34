"""Sockets for agents in boxes (`nsm box`, `claudebox`). No module imports a later one.

The client makes the box and becomes it. The supervisor knows its first process, and serves sockets
in a directory that the box shows to the agent, for as long as that process lives.

box          one box, from the program that asks for it to its last process, and its sockets
box_manager  all boxes

The person's own program starts the box, so that terminal, job control, pipes and the caller's
limits need no help of ours, and the agent doesn't end with a supervisor. Whoever connects to a
box's sockets has the right `run` in the box's scope and nothing else. A token in an environment
variable would show in `/proc` and outlive the box, and the user's own control socket would let an
agent mount any project.
"""

from nsmd.boxes.box import ServeConnection
from nsmd.boxes.box_manager import BoxManager

__all__ = ["BoxManager", "ServeConnection"]
