"""Running commands, wherever they wait: jobs, lanes with their slots, limits and traces.

`engine` is what the engines in memory (`lanes.memory`) and on a store (`lanes.durable`) have in
common. These two and what stands on them may import it; it knows neither. Begin with `engine`.
"""
