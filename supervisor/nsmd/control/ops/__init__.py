"""The operations of the control socket, a module for each subject.

attach           follow a session, run code in it, complete and check code
boxes            open sockets for a box, and list boxes
bridge           list, explain and run programs of the host
catalog          list the environments that there are
changes          show, apply and discard changes to a project in an overlay
drain            begin nothing new, and wait until nothing runs
environments     add, update, remove and list environments that Nix builds
files            open, read, write and list files of a session
fork             copy a session that runs
inspection       all facts about one session
jobs             start, read, write, signal, stop and list programs in a session
network          show and change what a session may reach
pool             what the pool holds, and why
secrets          choose, list, try and revoke secrets
ports            open, close and list ports of sessions on the host
preloading       modules that environments preload, and templates
project_environments  find, use and forget environments that lie in projects
reload           replace the supervisor by the program that is installed now
sandbox          make a session with settings and labels of its own
run              run code, and send its output and result
telemetry        metrics, percentiles and events
"""
