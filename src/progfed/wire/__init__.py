"""What crosses between server and clients: messages as checked bytes, and the tasks and updates that carry them."""
