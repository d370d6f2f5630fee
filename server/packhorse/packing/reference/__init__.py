"""Published packers that ours is compared with."""
