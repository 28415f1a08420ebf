"""The whole relay: against bare loops, and against itself under load."""
