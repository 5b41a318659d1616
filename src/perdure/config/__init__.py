"""Configuration of a process: files, environment and flags, read and checked before anything is opened."""
