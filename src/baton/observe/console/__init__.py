"""The console's files, as the package has them; what is in them is made in `console/`."""
