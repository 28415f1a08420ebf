"""The programs that the matrix starts: relays, writers and operators that die, and the consumer."""
