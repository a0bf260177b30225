"""Plans and reports as data."""
