"""What a phase costs a client: bytes, FLOPs, peak memory."""
