"""Questions to a person before a box starts, and the answers that are kept.

confirm         asks at the terminal, unless the person has answered already
agreements      agreements and answers that are kept, in `boxes.json`
summary         what can be changed, read and not seen
screen          the text that a person sees
readable_names  names that somebody else may have chosen, made safe to read
masking         which values of variables are shown
"""
