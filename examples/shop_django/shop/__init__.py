"""Orders, and the warehouse that hears of them."""
