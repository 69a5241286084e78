"""Pages of pipelines: their common elements and plots, and the page of a landing."""
