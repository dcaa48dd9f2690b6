"""Placeholder until known issues are read from data."""
