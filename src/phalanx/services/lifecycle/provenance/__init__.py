"""What a job is made of: reports about software and inputs, checkpoints to begin from, the digest."""
