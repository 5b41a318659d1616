"""Read tables of conversations that have no checkpoints, and make threads of them."""
