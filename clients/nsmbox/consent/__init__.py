"""Questions to a person before a box starts, and the answers that are kept.

confirm         asks at the terminal, unless the person has answered already
agreements      agreements and answers that are kept, in `boxes.json`
summary         what can be changed, read and not seen
screen          the text that a person sees
readable        names and values made safe to read and to show
"""
