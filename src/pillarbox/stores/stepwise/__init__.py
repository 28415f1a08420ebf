"""What stores over a blocking driver share: they work in a thread, one statement after the other.

The texts of the statements are each store's own, under the same names. Times are whole microseconds since 1970.
"""
