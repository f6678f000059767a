"""An event loop in a thread, for doors that programs without an event loop use.

`loop_thread` runs the event loop and does what other threads ask for. `forkable` closes what such a
door has open before the process forks, when no thread uses it (`fork_gate`). The repository and
``manager.sync`` of the lanes stand on it. It knows the stores only by what they tell about forks.
Begin with `loop_thread`.
"""
