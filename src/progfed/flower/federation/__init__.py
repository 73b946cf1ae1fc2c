"""A Flower federation on this machine, as it would be on several: processes, keys and certificates."""
