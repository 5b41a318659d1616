"""What is run by hand or by make, beside the package."""
