"""Schedules: commands that are submitted by the clock. `lanes.timetable` says when.

`memory_schedules` fires those of lanes in memory, and `lanes.durable.schedules` those on a store.
Begin with `schedule`.
"""
