"""The relay and a real broker, against a bare loop from the table to the broker's own client."""
