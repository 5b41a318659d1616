"""Workers: which queues are served next, one run at a time for each thread, and delivery of its replies."""
