"""How fast is an endpoint under load, and what does disaggregation gain? Over HTTP only.

`trace` and `traffic` say what is sent and when, `prompts` makes it, `generator` has it sent by
vLLM's own load generator (decision 0021 says why that one), `served` asks the endpoint which way
the requests went, `figures` does the arithmetic with the definitions of `baton.observe`. `run` is
one measurement, `sweep` one for each rate until the targets break, `compare` two sides in turn.
`report` and `plots` write it down.
"""
