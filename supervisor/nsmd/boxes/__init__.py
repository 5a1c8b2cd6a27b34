"""Sockets for agents in boxes (`nsm box`, `claudebox`). No module imports a later one.

The client makes the box and becomes it. The supervisor knows its first process, and serves sockets
in a directory that the box shows to the agent, for as long as that process lives.

box          one box, from the program that asks for it to its last process, and its sockets
box_manager  all boxes
"""

from nsmd.boxes.box import ServeConnection
from nsmd.boxes.box_manager import BoxManager

__all__ = ["BoxManager", "ServeConnection"]
