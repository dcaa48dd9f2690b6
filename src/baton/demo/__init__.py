"""The embedded model and the scripted first run."""
