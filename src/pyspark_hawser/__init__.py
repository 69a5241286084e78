"""What Spark looks for by its name: `format("hawser")` finds `DefaultSource` here."""
