"""Spare sessions, kept ready. No module imports a later one.

demand           how often sessions of a kind are taken, and how long one takes to start
policy           how many spare sessions to keep: a pure function
kind             spare sessions of one kind, and their figures
pool             the spare sessions, started and ended as the policy says
host_memory      how much of the host's memory spare sessions may use
memory_pressure  end spare and idle sessions when the host is short of memory
prewarm          start spare sessions for clients that have just connected
"""
