"""The operations of the control socket, a module for each subject.

run           run code, and send its output and result
sessions      make, find, list, keep, fork and end sessions
attach        follow a session, run code in it, complete and check code
jobs          start, read, write, signal, stop and list programs in a session
files         open, read, write, list and watch files of a session
changes       show, apply and discard changes to a project in an overlay
inspection    all facts about one session
network       what sessions may reach; secrets; ports on the host
environments  list, build and remove environments; those that lie in projects
preloading    modules that environments preload, and templates
boxes         open sockets for a box, and list boxes
bridge        list, explain and run programs of the host
supervisor    its state, its figures and events, and its end
"""
