"""Workers: the order in which queues are served, runs of threads one at a time, and delivery of their
replies."""
