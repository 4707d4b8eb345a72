"""The machine behind the stand-in: memory on the host, queues that run late, launches and products."""
