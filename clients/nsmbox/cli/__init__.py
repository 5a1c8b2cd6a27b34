"""The programs: `nsm box`, `claudebox`, and what both need.

box         the verb `nsm box`: options, and what they ask for
claudebox   the program `claudebox`: all arguments but three are claude's
common      words to a request, errors to exit codes
listing     `nsm box --list`
"""
