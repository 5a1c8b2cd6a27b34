"""Sockets for agents in boxes (`nsm box`, `claudebox`). A map; no module imports a later one.

place    the directory of one box's sockets
records  what is kept of a box for the next supervisor
handing  a box whose network is a list passes the socket on which its programs ask for more
box      one box, from the program that asks for it to its last process
boxes    all of them

The box itself is the client's: it makes its jail and becomes it. The supervisor knows its process,
and serves sockets in a directory that the box shows to the agent, for as long as that lives.
"""

from nsmd.boxes.box import Serve
from nsmd.boxes.boxes import Boxes
from nsmd.boxes.records import LeftBoxes, sort_out

__all__ = ["Boxes", "LeftBoxes", "Serve", "sort_out"]
