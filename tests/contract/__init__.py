"""One suite for each seam: the same tests on the real thing and on the simulated one."""
