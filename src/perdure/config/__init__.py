"""What a process is told: files, environment and flags, read and checked before anything is opened."""
