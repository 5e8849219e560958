"""Recording a server that whystall starts: its command with the flags that record, its output, and its ``/metrics``."""
