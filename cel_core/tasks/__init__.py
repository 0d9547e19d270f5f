"""The tasks: one benchmark a file."""
