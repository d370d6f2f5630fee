"""Commands about running servers: diagnosis, activity and load."""
