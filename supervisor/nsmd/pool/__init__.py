"""Spare sessions, kept ready. No module imports a later one.

policy           how many spare sessions to keep: a pure function
kind             spare sessions of one kind, its demand, and how long one takes to start
host_memory      how much of the host's memory spare sessions may use
pool             the spare sessions, started and ended as the policy says
memory_pressure  end spare and idle sessions when the host is short of memory
prewarm          start spare sessions for clients that have just connected
"""
