-- The tables of version 2. "lkq" stands for the schema that the store was given.

-- All numbers of the store only grow, but for `fronts`, which only falls. What a transaction took
-- that was rolled back is not given again.
CREATE SEQUENCE lkq.ids;
CREATE SEQUENCE lkq.fences;
CREATE SEQUENCE lkq.places;
CREATE SEQUENCE lkq.fronts INCREMENT -1 MINVALUE -9223372036854775808 MAXVALUE -1 START -1;
CREATE SEQUENCE lkq.burials;
CREATE SEQUENCE lkq.arrivals;

-- One row for each live key: its head. `state`: 0 available, 1 scheduled, 2 in flight, -1 held: a buried
-- item of the same id holds the key, and is in this row, too. `due` and `turn` order what comes due: a
-- lease by its expiry and minus its fence, a scheduled item by its time and its number. `behind` is how
-- many values wait in the line of the key; they are in the table `line`. `counted`: see `floors`.
--
-- Every job inserts a row, moves it and deletes it, so most of the table is soon dead. Autovacuum
-- comes after a number of dead rows, not after a share of the table: a share of a long backlog is
-- too late, and dead rows at the front of an index are what makes claims slow. It does not pause
-- between pages. The room that the fillfactor leaves on a page is for the next version of its
-- rows: a heartbeat or an update of a value then writes no other page.
CREATE TABLE lkq.items (
    id bigint NOT NULL,
    priority bigint NOT NULL,
    place bigint NOT NULL,
    turn bigint NOT NULL DEFAULT 0,
    put_at float8 NOT NULL,
    deadline float8,
    due float8,
    not_before float8,
    leased_at float8,
    attempt int NOT NULL DEFAULT 0,
    state smallint NOT NULL,
    counted boolean NOT NULL DEFAULT false,
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL DEFAULT '',
    token text COLLATE "C",
    history jsonb,
    behind bigint NOT NULL DEFAULT 0,
    line_from bigint, -- the ids of the line are above this; null: above the head's
    value bytea NOT NULL
) WITH (
    fillfactor = 80,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.5,
    autovacuum_analyze_threshold = 20000,
    vacuum_truncate = off -- it would lock the table, and the room is needed again soon
);
-- A lease makes a new version of its row, with an entry in all indexes but that of the available
-- ones: their pages have room for it beside the old one. No two entries are alike but by being of one
-- row, so there is nothing to gain by looking for them.
CREATE UNIQUE INDEX items_by_key ON lkq.items (queue, key)
    WITH (fillfactor = 50, deduplicate_items = off);
-- On a new table, of which nothing is known, one index on the queue is as good as another to the
-- planner. So there is only one, and others say it in words of their own.
CREATE INDEX items_by_state ON lkq.items ((queue || ''), state, id)
    WITH (fillfactor = 50, deduplicate_items = off);
CREATE INDEX items_ready ON lkq.items (queue, priority DESC, place, kind)
    WITH (deduplicate_items = off) WHERE state = 0;
-- Of the available items of a queue, the one whose deadline is the nearest. Items without a deadline
-- of their own have no entry.
CREATE INDEX items_hurried ON lkq.items (queue, deadline, id, kind)
    WITH (deduplicate_items = off) WHERE state = 0 AND deadline IS NOT NULL;
CREATE INDEX items_timed ON lkq.items (queue, due, turn)
    WITH (deduplicate_items = off) WHERE due IS NOT NULL OR state = 2;
CREATE INDEX items_counted ON lkq.items (queue, key) WHERE counted AND state = 2;

-- The values that wait behind the heads of their keys, in the order of their ids. The first behind a
-- leased head may be a buffered one, which `replaces` that if its lease ends before it is done. Rows of a
-- key are added, changed and deleted only by a call that has locked the row of its head.
CREATE TABLE lkq.line (
    id bigint NOT NULL,
    priority bigint NOT NULL,
    put_at float8 NOT NULL,
    deadline float8,
    not_before float8,
    replaces boolean NOT NULL DEFAULT false,
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    value bytea NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);
CREATE UNIQUE INDEX line_by_key ON lkq.line (queue, key, id) WITH (deduplicate_items = off);
CREATE INDEX line_by_state ON lkq.line ((queue || ''), replaces, id) WITH (deduplicate_items = off);

-- `holds`: the line of the key waits until the item is requeued or goes.
CREATE TABLE lkq.buried (
    id bigint NOT NULL,
    number bigint NOT NULL,
    priority bigint NOT NULL,
    put_at float8 NOT NULL,
    buried_at float8 NOT NULL,
    attempt int NOT NULL,
    holds boolean NOT NULL DEFAULT false,
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    error text NOT NULL,
    history jsonb,
    value bytea NOT NULL
);
CREATE UNIQUE INDEX buried_by_id ON lkq.buried (queue, id);
CREATE INDEX buried_by_age ON lkq.buried ((queue || ''), number);
CREATE INDEX buried_by_key ON lkq.buried ((queue || '' || ''), key);

CREATE TABLE lkq.done (
    id bigint NOT NULL,
    priority bigint NOT NULL,
    put_at float8 NOT NULL,
    due float8 NOT NULL,
    ended_at float8 NOT NULL,
    attempt int NOT NULL,
    outcome smallint NOT NULL, -- 0 completed, 1 failed, 2 cancelled
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    history jsonb,
    value bytea NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);
CREATE UNIQUE INDEX done_by_id ON lkq.done (queue, id);
CREATE INDEX done_by_due ON lkq.done ((queue || ''), due);
CREATE INDEX done_by_key ON lkq.done ((queue || '' || ''), key, outcome, ended_at, id);

-- How many items of a queue are in each state: the sum of its rows. A call that
-- changes them adds a row and waits for no other; from time to time the rows of a queue are made one. `done` counts all
-- results, the two behind it those of them that did not complete. `in_line` counts the values in lines,
-- but for those behind held keys: these are `held`.
CREATE TABLE lkq.tallies (
    available bigint NOT NULL,
    in_line bigint NOT NULL,
    scheduled bigint NOT NULL,
    in_flight bigint NOT NULL,
    buried bigint NOT NULL,
    done bigint NOT NULL,
    done_failed bigint NOT NULL DEFAULT 0,
    done_cancelled bigint NOT NULL DEFAULT 0,
    held bigint NOT NULL DEFAULT 0,
    queue text COLLATE "C" NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);
CREATE INDEX tallies_by_queue ON lkq.tallies (queue);

-- Where to begin to look in a queue: it has no available item of priority 0 with a place from 0 up to
-- `place`, and nothing that comes due before `due`. Rows that were deleted stay in an index as long
-- as any transaction in the database, of whatever program, is older than their end; a claim that
-- looks from the beginning walks over all of them. A queue has a row here once that was found to be
-- slow: beside an open transaction, a worker leases 40,000 items at 5,000 a second so, and at 1,700
-- without.
--
-- `counted`: a cap asked how many keys of a pattern are in flight. Since then what is leased in the
-- queue has an entry in the index for that; other queues do without.
CREATE TABLE lkq.floors (
    place bigint NOT NULL,
    due float8 NOT NULL,
    counted boolean NOT NULL DEFAULT false,
    queue text COLLATE "C" PRIMARY KEY
) WITH (fillfactor = 50, vacuum_truncate = off);

-- The buckets of caps that are not full.
CREATE TABLE lkq.buckets (
    level float8 NOT NULL,
    at float8 NOT NULL,
    next_at float8 NOT NULL,
    full_at float8 NOT NULL,
    each boolean NOT NULL,
    queue text COLLATE "C" NOT NULL,
    pattern text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    PRIMARY KEY (queue, pattern, each, key)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);
CREATE INDEX buckets_by_next ON lkq.buckets ((queue || ''), next_at);
CREATE INDEX buckets_by_full ON lkq.buckets ((queue || '' || ''), full_at);

-- Calls that were applied, with what they have to answer beyond what can be looked up: a client
-- whose connection broke asks here whether its call was. The row of a client's older call goes.
CREATE TABLE lkq.calls (
    at float8 NOT NULL,
    call text COLLATE "C" PRIMARY KEY,
    answers text
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);
CREATE INDEX calls_by_age ON lkq.calls (at);

-- The items that were put in the transactions of callers, in the order in which they were put: the next
-- call that uses the queue moves them to the table of items. Nothing else is locked or written in such
-- a transaction, so that no call waits for it, however long it stays open. `gate` is the number of the queue's lock.
CREATE TABLE lkq.inbox (
    gate bigint NOT NULL,
    number bigint NOT NULL DEFAULT nextval('lkq.arrivals'),
    id bigint NOT NULL,
    xact xid8 NOT NULL DEFAULT pg_current_xact_id(),
    priority bigint,
    due float8,
    unique_for float8 NOT NULL,
    queue text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    policy text NOT NULL,
    value bytea NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = off
);
CREATE INDEX inbox_by_gate ON lkq.inbox (gate, xact);
CREATE INDEX inbox_by_key ON lkq.inbox ((gate + 0), key);

-- Where to begin to look in the inbox of a queue: what transactions before `xact` have put was moved.
-- As with `floors`, what was moved stays in the index as long as any older transaction is open, and
-- every call looks there. `number` is that of the last one that was moved when this was written.
CREATE TABLE lkq.inbox_floors (
    gate bigint PRIMARY KEY,
    xact xid8 NOT NULL,
    number bigint NOT NULL
) WITH (fillfactor = 50, vacuum_truncate = off);
