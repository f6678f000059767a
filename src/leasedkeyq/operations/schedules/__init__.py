"""Schedules, as operators see and change them; `cron_words` says when they are due.

Begin with `schedule_views`.
"""
