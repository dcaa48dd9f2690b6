"""The way of a request: admit, route, prefill, handoff, decode, stream. Needs no Ray."""
