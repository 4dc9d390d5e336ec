CREATE TABLE {s}.meta (
    key text COLLATE "C" PRIMARY KEY,
    value bigint NOT NULL
);

-- Tells this schema from every other, wherever a connection leads.
INSERT INTO {s}.meta (key, value) VALUES ('identity', (random() * 9007199254740991)::bigint);

-- Microseconds since 1970: the one place where time is read.
CREATE FUNCTION {s}.clock_us() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- The millisecond that has begun: what is compared with now is compared with it.
CREATE FUNCTION {s}.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT {s}.clock_us() / 1000
$$;

-- The instant so many milliseconds after a reading of clock_us(). It counts from the next
-- millisecond, so that no delay is early and no lease is short. Nothing where there is no length.
CREATE FUNCTION {s}.after_ms(us bigint, ms bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN ms <= 0 THEN us / 1000
        WHEN ms > 0 THEN least((us + 999) / 1000 + least(ms, 253402300799999), 253402300799999)
    END
$$;

-- Lets who watches a topic look again, once this transaction has committed. Equal ones of a
-- transaction are one.
CREATE FUNCTION {s}.wake(topic text) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT pg_notify({wakes}, topic)
$$;

-- Raises where the transaction isn't the one that the engine began.
CREATE FUNCTION {s}.assert_tx(mark text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('alkstore.tx', true) IS DISTINCT FROM mark THEN
        RAISE EXCEPTION USING ERRCODE = '25P01',
            MESSAGE = 'the application''s own SQL ended the transaction by itself';
    END IF;
END
$$;
