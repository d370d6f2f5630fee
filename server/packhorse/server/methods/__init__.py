"""What each method answers, from a checked request to the message: nothing here knows gRPC."""
