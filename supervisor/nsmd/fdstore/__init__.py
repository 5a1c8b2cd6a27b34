"""Descriptors that outlive a supervisor, so that its sessions do.

A record in a sealed memory file is kept beside each group of descriptors and says what they are. It
can neither be torn nor lost without them, takes no disk, and goes with them.

codec          dataclasses as plain JSON and back
store          what any store of descriptors offers
records        what kept descriptors are
fates          what became of executions that an earlier supervisor was given
holder         a program that does nothing but hold descriptors
holder_store   a store that the holder keeps
systemd_store  a store that systemd keeps
handover       what a supervisor hands to the program that replaces it (`nsm reload`)
successor      try whether that program would start
store_choice   choose the store, read what it kept, and leave it at the end
"""
