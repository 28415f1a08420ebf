"""The relay and a real broker, against a straight line from the table to the broker's own client."""
