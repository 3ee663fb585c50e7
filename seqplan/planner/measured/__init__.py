"""Published measurements and how predictions stand beside them."""
