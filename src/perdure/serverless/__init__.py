"""Handlers for AWS Lambda: behind an HTTP API, a function URL, or a schedule.

A container is started for a call, frozen after its answer, and thawed for the next or never. So the database
is opened once a container and checked after a pause, no lease is held between two calls, and what a call has
begun is finished, or released for others, before its answer.
"""

from perdure.serverless.aws import lambda_function, lambda_handler
from perdure.serverless.warm_resources import Container

__all__ = ["Container", "lambda_function", "lambda_handler"]
