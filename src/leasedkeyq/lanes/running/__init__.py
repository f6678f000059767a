"""Running commands, wherever they wait: jobs, lanes with their slots, limits and traces.

`engine` is what the engines in memory and on a store have in common. Begin there.
"""
