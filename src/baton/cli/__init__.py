"""The command line: one file a verb, and the only room that prints.

Data goes to stdout, everything else to stderr.
"""
