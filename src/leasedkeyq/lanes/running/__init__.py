"""Running commands, wherever they wait: jobs, lanes with their slots, limits and traces.

`execution` has where the code of a command runs: threads, processes, and a watch over the event
loop. `remote_errors` is what is written down of the error of a command that ran in another process,
and `error_text` of any.

`engine` is what the engines in memory (`lanes.memory`) and on a store (`lanes.durable`) have in
common. These two and what stands on them may import it; it knows neither. Begin with `engine`.
"""
