"""The parts of the demo's path. Each part starts its processes, kills one of them, and proves its result."""
