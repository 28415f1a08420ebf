"""The shop's own tables. Pillarbox brings migrations of its own."""
