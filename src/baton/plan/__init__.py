"""Which engines, how many, and whether to disaggregate at all.

Read in this order. `devices` knows GPUs and instances from published figures; `model` reads a
model's shape from its config, in which `published` fills in what it leaves to its class and
`parameters` counts; `roofline` makes costs of the two ("modelled"), `profile_file` makes them from
what `measure` has measured on a running engine ("measured"), at which `preflight` looked before;
`costs` is what both make: seconds of a step, bytes of KV, seconds of a handoff.
`traffic` is a trace or a made-up one.

`simulator` plays a trace against a fleet. `layouts` says what a fleet is made of and what it costs
an hour, `bounds` what no simulation is needed for; `search` tries layouts and keeps of each what
`tried` says; `judge` says which is cheapest, why the others fail, and whether P/D pays; `app_yaml`
writes the winner down.

What it knows and what it cannot know is in docs/guides/planning.md; why it is made this way in
docs/decisions/0020-planning.md.
"""
