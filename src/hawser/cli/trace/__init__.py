"""The commands `hawser topic trace` and `hawser queue trace`, and their output for Perfetto."""
