"""Rules: requirements on a geometry and a machine, which prevent requests that the driver would refuse."""
