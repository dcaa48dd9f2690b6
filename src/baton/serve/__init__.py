"""The Ray Serve application: engine and gateway deployments, and the directory actor."""
