"""Small helpers that every room uses: errors, text, sizes and durations."""
