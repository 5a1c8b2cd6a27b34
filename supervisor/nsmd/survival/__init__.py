"""Sessions outlive the supervisor: descriptors that others keep, and what each of them is.

`store` is what keeps copies of descriptors while there may be no supervisor; `records` says what
they are. A record is a sealed file in memory that is kept beside them: it can be neither torn nor
lost without them, takes no disk, and goes with them.

A map; no module imports a later one.

store         what keeps descriptors, as the rest of the supervisor sees it
fates         what became of executions
pidfds        descriptors of processes, told from others
keeper        a program that does nothing but hold descriptors
keeperstore   the same, from the supervisor's side
systemdstore  systemd in its place
handing       what is handed to the program that a supervisor becomes
successor     whether that program would start
taking        all that was kept, gathered at the start; and how a supervisor leaves
"""
