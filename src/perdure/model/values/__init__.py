"""Turn a packed value into chunks, references and packs, and back."""
