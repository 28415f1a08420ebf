"""The programs that die."""
