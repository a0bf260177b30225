"""One run of a layout: build, verify, take down, report."""
