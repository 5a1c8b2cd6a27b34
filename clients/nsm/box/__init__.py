"""`nsm box` and `claudebox`: an agent's command line in a bubblewrap jail. A map; no module
imports a later one.

plan         what a box is: mounts, variables, network, command; frozen values, no I/O
"""
