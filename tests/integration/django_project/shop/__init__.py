"""Orders that say what happens to them."""
