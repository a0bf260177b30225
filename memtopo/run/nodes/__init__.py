"""Layouts of several nodes, on a Ray cluster: an agent on each node runs the conductor of its processes.

The agents meet at a hub after each command, and ask each other for fabric handles. The driver places them, notices
when one is lost, and merges their reports. Ray is imported in `cluster` alone.
"""
