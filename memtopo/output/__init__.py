"""Output: text, tables, drawings and JSON documents made from results."""
