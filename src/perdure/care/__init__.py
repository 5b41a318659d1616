"""Care of stored threads: retention, beside the programs that use them."""
