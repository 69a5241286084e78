"""What a record is: its bytes, its key and headers, and the types they stand for. Pure."""
