"""Running commands, wherever they wait: jobs, lanes with their slots, limits and traces.

`threads` runs plain functions; `remote_errors` is what is written down of the error of a command
that ran in another process.

`engine` is what the engines in memory (`lanes.memory`) and on a store (`lanes.durable`) have in
common. These two and what stands on them may import it; it knows neither. Begin with `engine`.
"""
