"""One file per broker that a consumer can read."""
