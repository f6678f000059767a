-- Every statement of the store is a walk along an index, or a look at one row of it. The statistics of a
-- table that fills and empties all the time say something else now and then, and a plan made by them
-- reads a whole table: so the ways to do that are off. A statement is planned once in a connection and
-- not at each call, which would take longer than to run it; and nothing here gains by being compiled.
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
SET jit = off
