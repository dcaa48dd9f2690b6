"""Put an application on a machine or a cluster, watch it, take it away."""
