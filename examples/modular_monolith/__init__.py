"""A shop in one process, whose modules know each other by their events alone."""
