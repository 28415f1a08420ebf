"""The consumer with its inbox, against the broker's bare client that inserts and commits without an inbox."""
