"""The peers that Hawser is compared with, one module for each."""
