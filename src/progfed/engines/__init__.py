"""Where clients train on this machine: in this process, or in worker processes. Flower stands on a floor of its own."""
