"""Keys and record encodings that Redis and DynamoDB share."""
