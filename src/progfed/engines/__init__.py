"""Where clients train: in processes of this machine (`local`), or on the nodes of a Flower federation (`flower`)."""
