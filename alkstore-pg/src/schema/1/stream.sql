-- head: the last event ever published. trimmed: the last one deleted.
CREATE TABLE {s}.streams (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    trimmed bigint NOT NULL DEFAULT 0,
    head bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

CREATE TABLE {s}.events (
    stream bigint NOT NULL,
    "offset" bigint NOT NULL,
    published_at bigint NOT NULL,
    key text,
    headers text,
    payload text NOT NULL,
    PRIMARY KEY (stream, "offset")
);

CREATE TABLE {s}.consumers (
    stream bigint NOT NULL,
    name text COLLATE "C" NOT NULL,
    "offset" bigint NOT NULL,
    PRIMARY KEY (stream, name)
) WITH (fillfactor = 70);
