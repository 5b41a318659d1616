"""Look for what is damaged or does not fit together, and say how it is mended."""
