"""What several commands share: options, the service they ask, and what they print."""
