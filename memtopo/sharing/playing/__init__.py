"""A producer that plays what another API would be to a layout, on a simulated machine."""
