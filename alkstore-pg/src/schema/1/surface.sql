-- What programs in other languages and triggers call. Their names, parameters and what they refuse
-- are public: docs/architecture/engine-pg.md.

-- Refuses what isn't a name. A shared one may not begin with the prefix of the store itself.
CREATE FUNCTION {s}.check_name(p_name text, p_shared boolean) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    space CONSTANT text := U&'[\0009-\000d\0020\0085\00a0\1680\2000-\200a\2028\2029\202f\205f\3000]';
    control CONSTANT text := U&'[\0001-\001f\007f-\009f]';
    reason text := CASE
        WHEN p_name IS NULL THEN 'it is null'
        WHEN p_name = '' THEN 'it is empty'
        WHEN octet_length(p_name) > 255 THEN 'it is longer than 255 bytes'
        WHEN p_name ~ control THEN 'it holds a control character'
        WHEN p_name ~ ('^' || space) OR p_name ~ (space || '$')
            THEN 'it begins or ends with white space'
        WHEN p_shared AND starts_with(p_name, '__alkstore_')
            THEN 'names that begin with __alkstore_ belong to the store'
    END;
BEGIN
    IF reason IS NOT NULL THEN
        RAISE EXCEPTION 'invalid name %: %', coalesce(quote_literal(p_name), 'NULL'), reason
            USING ERRCODE = 'invalid_parameter_value',
                HINT = 'A name has 1 to 255 bytes, no control character and no white space at either end.';
    END IF;
END
$$;

-- Refuses a document that is too large or nested too deep.
CREATE FUNCTION {s}.check_payload(p_payload json) RETURNS void
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    size bigint := octet_length(p_payload::text);
    brackets text;
BEGIN
    IF p_payload IS NULL THEN
        RAISE EXCEPTION 'the payload is null' USING ERRCODE = 'null_value_not_allowed',
            HINT = 'The JSON document null is ''null''::json.';
    END IF;
    IF size > 1048576 THEN
        RAISE EXCEPTION 'payload too large: % bytes, and at most 1048576 are taken', size
            USING ERRCODE = 'program_limit_exceeded',
                HINT = 'Store the body elsewhere and send a reference.';
    END IF;
    -- Each level takes an opening and a closing byte.
    IF size <= 254 THEN
        RETURN;
    END IF;
    brackets := regexp_replace(p_payload::text, '"(?:[^"\\]|\\.)*"|[^][{}"]+', '', 'g');
    IF length(brackets) > 254 AND (
        SELECT max(b.depth) FROM (
            SELECT sum(CASE WHEN c.c IN ('[', '{') THEN 1 ELSE -1 END) OVER (ORDER BY c.n) AS depth
            FROM unnest(string_to_array(brackets, NULL)) WITH ORDINALITY AS c (c, n)) b) > 127
    THEN
        RAISE EXCEPTION 'the payload is nested deeper than 127 levels'
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Flatten it.';
    END IF;
END
$$;

-- Refuses headers that aren't a small map of strings, and returns them as they are stored.
CREATE FUNCTION {s}.checked_headers(p_headers json) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    entry record;
    entries bigint := 0;
    size bigint := 0;
BEGIN
    IF p_headers IS NULL THEN
        RETURN NULL;
    END IF;
    IF json_typeof(p_headers) <> 'object' THEN
        RAISE EXCEPTION 'headers are an object of strings, not %', json_typeof(p_headers)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR entry IN SELECT e.key, e.value, e.value #>> '{}' AS text FROM json_each(p_headers) e LOOP
        PERFORM {s}.check_name(entry.key, false);
        IF starts_with(entry.key, 'alkstore-') THEN
            RAISE EXCEPTION 'header % is reserved: those that begin with alkstore- belong to the store',
                quote_literal(entry.key) USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF json_typeof(entry.value) <> 'string' THEN
            RAISE EXCEPTION 'header % is a string, not %', quote_literal(entry.key),
                json_typeof(entry.value) USING ERRCODE = 'invalid_parameter_value';
        END IF;
        entries := entries + 1;
        size := size + octet_length(entry.key) + octet_length(entry.text);
    END LOOP;
    IF entries > 64 OR size > 8192 THEN
        RAISE EXCEPTION 'headers have % entries of % bytes, and at most 64 of 8192 in all are taken',
            entries, size USING ERRCODE = 'program_limit_exceeded';
    END IF;
    IF entries = 0 THEN
        RETURN NULL;
    END IF;
    RETURN (SELECT '{' || string_agg(to_json(e.key)::text || ':' || e.value::text, ',') || '}'
        FROM json_each(p_headers) e);
END
$$;

-- An interval in whole milliseconds, rounded up, and at most the distance to the year 10000.
CREATE FUNCTION {s}.millis(p_interval interval) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT least(ceil(extract(epoch FROM p_interval) * 1000), 253402300799999)::bigint
$$;

-- An instant in milliseconds, rounded up; those before 1970 count as 1970.
CREATE FUNCTION {s}.millis(p_at timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT CASE
        WHEN p_at <= timestamptz '1970-01-01 00:00:00+00' THEN 0
        WHEN p_at >= timestamptz '9999-12-31 23:59:59.999+00' THEN 253402300799999
        ELSE ceil(extract(epoch FROM p_at) * 1000)::bigint
    END
$$;

-- Adds a job and returns its id, or that of the live job that has the unique key.
CREATE FUNCTION {s}.enqueue(
    queue text,
    payload json,
    delay interval DEFAULT NULL,
    run_at timestamptz DEFAULT NULL,
    priority integer DEFAULT 0,
    max_attempts integer DEFAULT 3,
    expires interval DEFAULT NULL,
    unique_key text DEFAULT NULL,
    headers json DEFAULT NULL,
    visibility_timeout interval DEFAULT '300 s',
    retry_base interval DEFAULT '5 s',
    dead_retention interval DEFAULT NULL
) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {s}.check_name(queue, true);
    PERFORM {s}.check_payload(payload);
    IF unique_key IS NOT NULL THEN
        PERFORM {s}.check_name(unique_key, false);
    END IF;
    IF coalesce(max_attempts < 1, true) THEN
        RAISE EXCEPTION 'invalid max_attempts %: at least 1', coalesce(max_attempts::text, 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF coalesce({s}.millis(visibility_timeout) NOT BETWEEN 1 AND 315360000000, true) THEN
        RAISE EXCEPTION 'invalid visibility_timeout %: 1 ms to 3650 days',
            coalesce(visibility_timeout::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF least(delay, expires, dead_retention, retry_base) < interval '0' OR retry_base IS NULL
        OR priority IS NULL
    THEN
        RAISE EXCEPTION 'no delay, expires, dead_retention and retry_base is negative, and retry_base and priority aren''t null'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN ({s}.insert_jobs(
        ARRAY[queue], ARRAY[payload::text], ARRAY[{s}.checked_headers(headers)], ARRAY[priority],
        ARRAY[coalesce({s}.millis(delay), 0)],
        ARRAY[CASE WHEN delay IS NULL THEN {s}.millis(run_at) END],
        ARRAY[{s}.millis(expires)], ARRAY[unique_key], ARRAY[max_attempts::bigint],
        ARRAY[{s}.millis(visibility_timeout)], ARRAY[{s}.millis(retry_base)],
        ARRAY[{s}.millis(dead_retention)]))[1];
END
$$;

-- Appends an event when the calling transaction commits; it takes its place then.
CREATE FUNCTION {s}.publish(
    stream text, payload json, key text DEFAULT NULL, headers json DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {s}.check_name(stream, true);
    PERFORM {s}.check_payload(payload);
    IF key IS NOT NULL THEN
        PERFORM {s}.check_name(key, false);
    END IF;
    PERFORM {s}.stage_events(
        stream, ARRAY[key], ARRAY[{s}.checked_headers(headers)], ARRAY[payload::text]);
END
$$;

-- Sends a message to every listener of a channel when the calling transaction commits.
CREATE FUNCTION {s}.notify(channel text, payload json) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM {s}.check_name(channel, true);
    PERFORM {s}.check_payload(payload);
    PERFORM {s}.send_message(channel, payload::text);
END
$$;
