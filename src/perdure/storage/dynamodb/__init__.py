"""DynamoDB: one table, conditional transactions."""
