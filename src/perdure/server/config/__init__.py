"""What a server makes of the settings."""
