"""What the server does in a round: Algorithm 1, the broadcast, and the replies."""
