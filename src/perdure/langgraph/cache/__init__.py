"""Values that a process has read or written: kept decoded, handed out without decoding them again."""
