"""Records of driver calls: the memory that they make, as a layout, as a spec, and compared with one."""
