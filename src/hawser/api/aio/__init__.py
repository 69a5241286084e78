"""The asynchronous API: the abstract classes that `hawser.aio` exports."""
