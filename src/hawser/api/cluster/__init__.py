"""The public names on a cluster, over its client. Imported only when a program connects to a cluster."""
