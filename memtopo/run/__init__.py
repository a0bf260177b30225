"""One run of a layout: build, verify, tear down, report."""
