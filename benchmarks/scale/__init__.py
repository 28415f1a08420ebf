"""Many stores, and many relays."""
