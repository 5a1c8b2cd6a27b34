"""Frames between the supervisor and one agent. Everything that comes out of a jail is untrusted.

file_frames  frames about files that an agent may send, with each field checked
frames       every frame that an agent may send, those about jobs included
link         one agent's socket: frames in order, acknowledged, resumed after a restart
requests     questions to an agent beside its executions, and their answers
"""
