"""From YAML to checked, frozen values.

`schema` holds the values, `load` reads a file and remembers the line of every key, `rules` says
what cannot work and why, `resolve` fills in what the user left open, `adapt` fits a file to the
machine at hand.
"""
