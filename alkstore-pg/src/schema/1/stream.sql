-- One row for each stream that was ever published to. head: the last event ever published, which
-- is the counter of the offsets. Who holds the row's lock publishes next, and holds it until its
-- commit is visible: so offsets are contiguous and stand in the order of the commits.
-- trimmed: the last event deleted.
CREATE TABLE {s}.streams (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    trimmed bigint NOT NULL DEFAULT 0,
    head bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

-- The events of an open transaction have no place yet: they stand under the negative id of their
-- row in staged, counted from 1, where no reader looks.
CREATE TABLE {s}.events (
    stream bigint NOT NULL,
    "offset" bigint NOT NULL,
    published_at bigint NOT NULL,
    key text,
    headers text,
    payload text NOT NULL,
    PRIMARY KEY (stream, "offset")
);

-- One row for each stream that an open transaction publishes to; empty but for those.
CREATE TABLE {s}.staged (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tx xid8 NOT NULL,
    stream text COLLATE "C" NOT NULL,
    count bigint NOT NULL,
    UNIQUE (tx, stream)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

-- A stream that has consumers only has no row of its own.
CREATE TABLE {s}.consumers (
    stream text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    "offset" bigint NOT NULL,
    PRIMARY KEY (stream, name)
) WITH (fillfactor = 70);

-- Appends events in a transaction that ends with this statement, and returns the offset before the
-- first of them.
CREATE FUNCTION {s}.append_events(
    p_stream text, p_keys text[], p_headers text[], p_payloads text[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    n bigint := cardinality(p_payloads);
    place record;
BEGIN
    UPDATE {s}.streams s SET head = s.head + n WHERE s.name = p_stream
        RETURNING s.id, s.head - n AS base, {s}.now_ms() AS now INTO place;
    IF NOT FOUND THEN
        INSERT INTO {s}.streams AS s (name, head) VALUES (p_stream, n)
            ON CONFLICT (name) DO UPDATE SET head = s.head + n
            RETURNING s.id, s.head - n AS base, {s}.now_ms() AS now INTO place;
    END IF;
    INSERT INTO {s}.events (stream, "offset", published_at, key, headers, payload)
        SELECT place.id, place.base + e.n, place.now, e.key, e.headers, e.payload
        FROM unnest(p_keys, p_headers, p_payloads)
            WITH ORDINALITY AS e (key, headers, payload, n);
    PERFORM {s}.wake('s' || p_stream);
    RETURN place.base;
END
$$;

-- Stages events of the calling transaction; they take their places when it commits. Nothing here
-- waits for anybody.
CREATE FUNCTION {s}.stage_events(
    p_stream text, p_keys text[], p_headers text[], p_payloads text[]
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    n bigint := cardinality(p_payloads);
    own record;
BEGIN
    INSERT INTO {s}.staged AS s (tx, stream, count) VALUES (pg_current_xact_id(), p_stream, n)
        ON CONFLICT (tx, stream) DO UPDATE SET count = s.count + n
        RETURNING s.id, s.count - n AS base, {s}.now_ms() AS now INTO own;
    INSERT INTO {s}.events (stream, "offset", published_at, key, headers, payload)
        SELECT -own.id, own.base + e.n, own.now, e.key, e.headers, e.payload
        FROM unnest(p_keys, p_headers, p_payloads)
            WITH ORDINALITY AS e (key, headers, payload, n);
END
$$;

-- At the commit of a transaction its events take their places, stream after stream in the order of
-- the names, so that two transactions that publish to the same streams don't wait in a circle. The
-- trigger of the first row does it for all rows of the transaction; the others find none left.
CREATE FUNCTION {s}.place_events() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    own record;
    place record;
BEGIN
    FOR own IN
        SELECT s.id, s.stream, s.count FROM {s}.staged s
        WHERE s.tx = pg_current_xact_id() ORDER BY s.stream
    LOOP
        INSERT INTO {s}.streams AS s (name, head) VALUES (own.stream, own.count)
            ON CONFLICT (name) DO UPDATE SET head = s.head + own.count
            RETURNING s.id, s.head - own.count AS base INTO place;
        UPDATE {s}.events e SET stream = place.id, "offset" = place.base + e."offset"
            WHERE e.stream = -own.id;
        PERFORM {s}.wake('s' || own.stream);
    END LOOP;
    DELETE FROM {s}.staged s WHERE s.tx = pg_current_xact_id();
    RETURN NULL;
END
$$;

CREATE CONSTRAINT TRIGGER place_events AFTER INSERT ON {s}.staged
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {s}.place_events();

-- Deletes the events up to a horizon and says how many. Publishers wait for the last step only.
CREATE FUNCTION {s}.trim_stream(p_stream text, p_horizon bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    stream record;
    deleted bigint;
BEGIN
    SELECT s.id, least(s.head, p_horizon) AS horizon INTO stream
        FROM {s}.streams s WHERE s.name = p_stream AND s.trimmed < least(s.head, p_horizon);
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    DELETE FROM {s}.events e WHERE e.stream = stream.id AND e."offset" <= stream.horizon;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    UPDATE {s}.streams s SET trimmed = greatest(s.trimmed, stream.horizon) WHERE s.id = stream.id;
    RETURN deleted;
END
$$;

-- Moves a consumer, forward only unless it may go back. Returns the head where that was beyond it,
-- and nothing was written.
CREATE FUNCTION {s}.move_consumer(
    p_stream text, p_consumer text, p_offset bigint, p_back boolean
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    head bigint := coalesce((SELECT s.head FROM {s}.streams s WHERE s.name = p_stream), 0);
BEGIN
    IF p_offset > head THEN
        RETURN head;
    END IF;
    INSERT INTO {s}.consumers AS c (stream, name, "offset")
        VALUES (p_stream, p_consumer, p_offset)
        ON CONFLICT (stream, name) DO UPDATE SET "offset" = p_offset
        WHERE p_back OR c."offset" < p_offset;
    RETURN NULL;
END
$$;
