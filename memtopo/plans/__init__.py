"""Plans and reports as data: folded rows, reports of runs, and saved plans."""
