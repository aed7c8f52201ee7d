"""Tasks: functions that workers run, on queues and tables; there is no scheduler process."""
