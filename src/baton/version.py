"""Which Baton this is. A module of its own: rooms that must not know Ray can import it."""

__version__ = "0.1.0"
