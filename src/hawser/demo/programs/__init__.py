"""The programs that the demo starts as processes of their own."""
