"""The public names on a cluster, over its client. Imported only by who connects to one."""
