-- A database of version 8 as it was left: items in every state, two queues, and a bucket.
-- All times are near 1700000000; "mail" was put at 1700000000 and 1700000002.
PRAGMA application_id = 1818980641;
PRAGMA user_version = 8;
BEGIN TRANSACTION;
CREATE TABLE buckets (
    queue TEXT NOT NULL,
    pattern TEXT NOT NULL,
    own INTEGER NOT NULL,
    key TEXT NOT NULL,
    level REAL NOT NULL,
    at REAL NOT NULL,
    next_at REAL NOT NULL,
    full_at REAL NOT NULL
) STRICT;
INSERT INTO "buckets" VALUES('mail','*',0,'',0.5,1700000002.0,1700000003.0,1700000005.0);
CREATE TABLE buried (
    id INTEGER PRIMARY KEY,
    number INTEGER NOT NULL,
    queue INTEGER NOT NULL,
    key TEXT NOT NULL,
    priority INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    put_at REAL NOT NULL,
    buried_at REAL NOT NULL,
    holds INTEGER NOT NULL,
    error TEXT NOT NULL,
    history BLOB,
    kind TEXT NOT NULL DEFAULT '',
    value BLOB NOT NULL
) STRICT;
INSERT INTO "buried" VALUES(1,1,1,'gone',3,1,1700000000.0,1700000001.0,0,'it broke',X'5B7B226E756D626572223A312C22656E6465645F6174223A313730303030303030312E302C22686F77223A22627572696564222C226572726F72223A2269742062726F6B65227D5D','',X'22676F6E6522');
CREATE TABLE counters (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    last_id INTEGER NOT NULL DEFAULT 0,
    last_fence INTEGER NOT NULL DEFAULT 0,
    back INTEGER NOT NULL DEFAULT 0,
    front INTEGER NOT NULL DEFAULT 0,
    schedules INTEGER NOT NULL DEFAULT 0,
    burials INTEGER NOT NULL DEFAULT 0,
    commits INTEGER NOT NULL DEFAULT 0
, fence_mark INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO "counters" VALUES(1,10,5,10,0,1,1,11,0);
CREATE TABLE done (
    id INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    key TEXT NOT NULL,
    priority INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    put_at REAL NOT NULL,
    ended_at REAL,
    due REAL NOT NULL,
    outcome INTEGER NOT NULL,
    history BLOB,
    kind TEXT NOT NULL DEFAULT '',
    value BLOB NOT NULL
) STRICT;
INSERT INTO "done" VALUES(2,1,'ready',0,1,1700000000.0,NULL,1700001001.0,0,NULL,'',X'22726573756C7422');
CREATE TABLE items (
    id INTEGER PRIMARY KEY,
    queue INTEGER NOT NULL,
    key TEXT NOT NULL,
    in_line INTEGER NOT NULL,
    state INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    place INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    behind INTEGER NOT NULL,
    put_at REAL NOT NULL,
    deadline REAL,
    due REAL,
    turn INTEGER NOT NULL,
    not_before REAL,
    token TEXT,
    leased_at REAL,
    history BLOB,
    kind TEXT NOT NULL DEFAULT '',
    value BLOB NOT NULL
) STRICT;
INSERT INTO "items" VALUES(3,1,'again',0,0,0,6,1,0,1700000000.0,NULL,NULL,-3,NULL,NULL,NULL,X'5B7B226E756D626572223A312C22656E6465645F6174223A313730303030303030312E302C22686F77223A2272656C6561736564222C226572726F72223A226E6F74206E6F77227D5D','',X'22616761696E22');
INSERT INTO "items" VALUES(4,1,'held',0,2,0,4,1,0,1700000000.0,NULL,1700000052.0,-4,NULL,'token of held',NULL,NULL,'',X'2268656C6422');
INSERT INTO "items" VALUES(5,1,'both',0,2,0,7,1,1,1700000000.0,NULL,1700000062.0,-5,NULL,'token of both',NULL,NULL,'',X'22626F746822');
INSERT INTO "items" VALUES(6,1,'both',6,3,2,0,0,0,1700000002.0,NULL,NULL,0,NULL,NULL,NULL,NULL,'',X'226E6577657222');
INSERT INTO "items" VALUES(7,1,'free',0,0,0,8,0,0,1700000002.0,NULL,NULL,0,NULL,NULL,NULL,NULL,'',X'7B22746F223A22616E6E227D');
INSERT INTO "items" VALUES(8,1,'urgent',0,0,5,9,0,0,1700000002.0,NULL,NULL,0,NULL,NULL,NULL,NULL,'',X'5B312C325D');
INSERT INTO "items" VALUES(9,1,'later',0,1,0,0,0,0,1700000002.0,NULL,1700000102.0,1,NULL,NULL,NULL,NULL,'',X'322E35');
INSERT INTO "items" VALUES(10,2,'free',0,0,0,10,0,0,1700000002.0,NULL,NULL,0,NULL,NULL,NULL,NULL,'',X'6E756C6C');
CREATE TABLE queues (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    available INTEGER NOT NULL DEFAULT 0,
    in_line INTEGER NOT NULL DEFAULT 0,
    scheduled INTEGER NOT NULL DEFAULT 0,
    in_flight INTEGER NOT NULL DEFAULT 0,
    buried INTEGER NOT NULL DEFAULT 0,
    done INTEGER NOT NULL DEFAULT 0
, done_failed INTEGER NOT NULL DEFAULT 0, done_cancelled INTEGER NOT NULL DEFAULT 0, held INTEGER NOT NULL DEFAULT 0) STRICT;
INSERT INTO "queues" VALUES(1,'mail',3,1,1,2,1,1,0,0,0);
INSERT INTO "queues" VALUES(2,'other',1,0,0,0,0,0,0,0,0);
CREATE UNIQUE INDEX buckets_by_name ON buckets (queue, pattern, own, key);
CREATE INDEX buckets_by_token ON buckets (queue, next_at);
CREATE INDEX buckets_by_filling ON buckets (queue, full_at);
CREATE UNIQUE INDEX items_by_key ON items (queue, key, in_line);
CREATE INDEX items_by_state ON items (queue, state);
CREATE INDEX items_ready ON items (queue, priority DESC, place, kind) WHERE state = 0;
CREATE INDEX items_timed ON items (queue, due, turn) WHERE due IS NOT NULL;
CREATE INDEX items_hurried ON items (queue, deadline, id, kind)
WHERE state = 0 AND deadline IS NOT NULL;
CREATE INDEX buried_by_age ON buried (queue, number);
CREATE INDEX buried_by_queue ON buried (queue);
CREATE INDEX buried_by_key ON buried (queue, key);
CREATE INDEX done_by_due ON done (queue, due, outcome);
CREATE INDEX done_by_queue ON done (queue);
CREATE INDEX done_by_key ON done (queue, key, outcome, ended_at);
COMMIT;
