"""Definitions, timelines and metrics: what was measured and what it is called."""
