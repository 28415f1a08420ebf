"""One for each version of the tables."""
