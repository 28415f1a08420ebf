"""Rolling upgrades: writers and relays of two releases share a store, whose schema goes up and down meanwhile."""
