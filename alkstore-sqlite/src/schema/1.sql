CREATE TABLE alkstore_meta (
    key TEXT NOT NULL PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- state: 0 ready, 1 delayed, 2 claimed, 3 claimed on the last attempt, 4 dead.
-- at: since when it is ready, when it falls due, the claim's deadline (2 and 3), when it died.
CREATE TABLE alkstore_jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL,
    state INTEGER NOT NULL,
    at INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    max_attempts INTEGER NOT NULL,
    enqueued_at INTEGER NOT NULL,
    ready_at INTEGER NOT NULL,
    visibility_ms INTEGER NOT NULL,
    retry_base_ms INTEGER NOT NULL,
    retention_ms INTEGER,
    expires_at INTEGER,
    gone_at INTEGER,
    token INTEGER NOT NULL DEFAULT 0,
    worker TEXT,
    unique_key TEXT,
    last_error TEXT,
    headers TEXT,
    payload TEXT NOT NULL
) STRICT;

CREATE INDEX alkstore_jobs_ready ON alkstore_jobs (queue, priority DESC, at, id)
    WHERE state = 0;
CREATE INDEX alkstore_jobs_due ON alkstore_jobs (queue, at, id)
    WHERE state IN (1, 2);
CREATE INDEX alkstore_jobs_last ON alkstore_jobs (at)
    WHERE state = 3;
CREATE INDEX alkstore_jobs_dead ON alkstore_jobs (queue, id)
    WHERE state = 4;
CREATE INDEX alkstore_jobs_expiring ON alkstore_jobs (expires_at)
    WHERE state < 4 AND expires_at IS NOT NULL;
CREATE INDEX alkstore_jobs_gone ON alkstore_jobs (gone_at)
    WHERE gone_at IS NOT NULL;
CREATE UNIQUE INDEX alkstore_jobs_key ON alkstore_jobs (queue, unique_key)
    WHERE state < 4 AND unique_key IS NOT NULL;

CREATE TABLE alkstore_paused (
    queue TEXT NOT NULL PRIMARY KEY
) STRICT, WITHOUT ROWID;

CREATE TABLE alkstore_streams (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    trimmed INTEGER NOT NULL DEFAULT 0,
    head INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE alkstore_events (
    stream INTEGER NOT NULL,
    offset INTEGER NOT NULL,
    published_at INTEGER NOT NULL,
    key TEXT,
    headers TEXT,
    payload TEXT NOT NULL,
    PRIMARY KEY (stream, offset)
) STRICT, WITHOUT ROWID;

CREATE TABLE alkstore_consumers (
    stream INTEGER NOT NULL,
    name TEXT NOT NULL,
    offset INTEGER NOT NULL,
    PRIMARY KEY (stream, name)
) STRICT, WITHOUT ROWID;

-- ends: the bytes of all messages ever sent, up to and with this one.
CREATE TABLE alkstore_messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    channel TEXT NOT NULL,
    at INTEGER NOT NULL,
    size INTEGER NOT NULL,
    ends INTEGER NOT NULL,
    payload TEXT NOT NULL
) STRICT;

-- owner: nothing where nobody holds it; the row stays and counts the acquisitions.
CREATE TABLE alkstore_locks (
    name TEXT NOT NULL PRIMARY KEY,
    token INTEGER NOT NULL,
    owner TEXT,
    expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE alkstore_schedules (
    name TEXT NOT NULL PRIMARY KEY,
    spec TEXT NOT NULL,
    period_ms INTEGER NOT NULL,
    anchor INTEGER NOT NULL,
    next_at INTEGER NOT NULL,
    paused INTEGER NOT NULL DEFAULT 0,
    queue TEXT NOT NULL,
    priority INTEGER NOT NULL,
    max_attempts INTEGER,
    expires_ms INTEGER,
    visibility_ms INTEGER,
    retry_base_ms INTEGER,
    retention_ms INTEGER,
    headers TEXT,
    payload TEXT NOT NULL
) STRICT;
