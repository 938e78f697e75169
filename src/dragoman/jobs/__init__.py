"""Jobs: work that a server does at intervals, who runs it, and the registry of processes and agents.

1. A job runs in one process among those that share a data directory, or in each of them (`ScheduledJob.everywhere`).
   Each job has a lock of its own, because servers on one data directory may have different jobs.
2. Each run leaves one log entry and one row, which replaces that of the run before.
3. A run that fails does not end the schedule.
"""
