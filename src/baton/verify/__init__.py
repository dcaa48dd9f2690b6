"""Collect evidence, then judge."""
