"""Pages of results for a browser: the report of a run, and a probe. They need no script and no network."""
