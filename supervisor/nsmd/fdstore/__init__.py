"""Descriptors that outlive a supervisor, so that its sessions do, too.

Each group of descriptors is stored with a record in a sealed memory file, which describes them. The
record cannot be torn or lost without them, needs no disk, and disappears with them.

store            interface of all stores
records          descriptions of kept descriptors, and what becomes of an earlier supervisor's
holder           a program that does nothing but hold descriptors
running_holders  holders of earlier supervisors, and what they hold
holder_store     a store that the holder keeps
systemd_store    a store that systemd keeps
handover         leave everything to the next program, which is tried first (`nsm reload`)
"""
