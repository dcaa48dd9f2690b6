"""Probes of client libraries, run by the interpreters that have them (`.clients`)."""
