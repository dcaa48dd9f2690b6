"""What `baton support-bundle` packs, and how it is seen to that no secret and no prompt is in it.

Nothing is searched for prompts and taken out: nobody knows what a prompt looks like. It is the
other way round. A log line comes into the bundle as what is known to be harmless: words that stand
in the source of the program that wrote it, numbers, request ids, places in code (`safe_lines`,
`templates`). Config and JSON come in by key, with secrets removed (`redact`). Whatever fits nothing
is left out, and the bundle's MANIFEST says how much that was.
"""
