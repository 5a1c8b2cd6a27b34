"""Sessions outlive the supervisor: descriptors that others keep, and what each of them is.

`store` is what keeps copies of descriptors while there may be no supervisor; `records` says what
they are. A record is a sealed file in memory that is kept beside them: it can be neither torn nor
lost without them, takes no disk, and goes with them.
"""
