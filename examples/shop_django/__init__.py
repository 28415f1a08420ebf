"""A Django shop that announces its orders over NATS, and a warehouse that packs them."""
