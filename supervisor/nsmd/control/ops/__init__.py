"""The operations of the control socket, a module for each subject.

run           run code, and send its output and result
sessions      make, find, list, keep, join, fork and end sessions
fresh         run programs in fresh interpreters
jobs          start, read, write, signal, stop and list programs in a session
files         open, read, write, list and watch files of a session; its changes to a project
inspection    all facts about one session
network       what sessions may reach; secrets; ports on the host; sockets of boxes
environments  list, build and remove environments; what they preload; those in projects
bridge        list, explain and run programs of the host
supervisor    its state, its figures and events, and its end
"""
