"""What several test folders share: waiting with a hang guard, an S3 server, checks for leaks."""
