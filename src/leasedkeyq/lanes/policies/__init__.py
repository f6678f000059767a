"""The policies of lanes: retries, rate limits, limits on keys, boosts by deadlines, and alerts.

Plain values that people write into a `LaneConfig`, and the little arithmetic that goes with them.
Every module of lanes may import them; they know nothing of what runs commands. Begin with `retry`.
"""
