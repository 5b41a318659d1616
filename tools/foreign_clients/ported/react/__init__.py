"""The graphs of @langchain/react's suite in Python, and what stands in the place of its server."""
