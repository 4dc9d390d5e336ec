CREATE TABLE {s}.schedules (
    name text COLLATE "C" PRIMARY KEY,
    spec text NOT NULL,
    period_ms bigint NOT NULL,
    anchor bigint NOT NULL,
    next_at bigint NOT NULL,
    paused boolean NOT NULL DEFAULT false,
    queue text COLLATE "C" NOT NULL,
    priority integer NOT NULL,
    max_attempts bigint,
    expires_ms bigint,
    visibility_ms bigint,
    retry_base_ms bigint,
    retention_ms bigint,
    headers text,
    payload text NOT NULL
) WITH (fillfactor = 70);

CREATE INDEX schedules_next ON {s}.schedules (next_at) WHERE NOT paused;

-- The same period keeps grid and next boundary, a new one begins at now.
CREATE FUNCTION {s}.upsert_schedule(
    p_name text, p_spec text, p_period bigint, p_queue text, p_priority integer,
    p_max_attempts bigint, p_expires bigint, p_visibility bigint, p_retry_base bigint,
    p_retention bigint, p_headers text, p_payload text,
    OUT anchor bigint, OUT next_at bigint, OUT paused boolean
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now bigint := {s}.now_ms();
BEGIN
    INSERT INTO {s}.schedules AS s (name, spec, period_ms, anchor, next_at, queue, priority,
            max_attempts, expires_ms, visibility_ms, retry_base_ms, retention_ms, headers, payload)
        VALUES (p_name, p_spec, p_period, now, least(now + p_period, 253402300799999), p_queue,
            p_priority, p_max_attempts, p_expires, p_visibility, p_retry_base, p_retention,
            p_headers, p_payload)
        ON CONFLICT (name) DO UPDATE SET
            spec = excluded.spec, period_ms = excluded.period_ms,
            anchor = CASE WHEN s.period_ms = excluded.period_ms
                THEN s.anchor ELSE excluded.anchor END,
            next_at = CASE WHEN s.period_ms = excluded.period_ms
                THEN s.next_at ELSE excluded.next_at END,
            queue = excluded.queue, priority = excluded.priority,
            max_attempts = excluded.max_attempts, expires_ms = excluded.expires_ms,
            visibility_ms = excluded.visibility_ms, retry_base_ms = excluded.retry_base_ms,
            retention_ms = excluded.retention_ms, headers = excluded.headers,
            payload = excluded.payload
        RETURNING s.anchor, s.next_at, s.paused INTO anchor, next_at, paused;
    PERFORM {s}.wake('c');
END
$$;

CREATE FUNCTION {s}.delete_schedule(p_name text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM {s}.schedules WHERE name = p_name;
    IF FOUND THEN
        PERFORM {s}.wake('c');
        RETURN true;
    END IF;
    RETURN false;
END
$$;

-- Resumed, a schedule goes on with the first boundary strictly in the future.
CREATE FUNCTION {s}.set_schedule_paused(p_name text, p_paused boolean) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    now bigint := {s}.now_ms();
BEGIN
    UPDATE {s}.schedules SET
            paused = p_paused,
            next_at = CASE WHEN p_paused OR next_at > now THEN next_at
                ELSE next_at + ((now - next_at) / period_ms + 1) * period_ms END
        WHERE name = p_name AND paused IS DISTINCT FROM p_paused;
    IF FOUND THEN
        PERFORM {s}.wake('c');
        RETURN true;
    END IF;
    RETURN false;
END
$$;

-- Fires what is due: each schedule's jobs and its advance are one step, because a schedule that
-- another tick has locked is looked at again once that has committed.
CREATE FUNCTION {s}.tick_schedules(OUT fired bigint, OUT next_at bigint, OUT us bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    now bigint;
    due bigint;
    n integer;
    r record;
BEGIN
    us := {s}.clock_us();
    now := us / 1000;
    fired := 0;
    FOR r IN
        SELECT s.* FROM {s}.schedules s WHERE NOT s.paused AND s.next_at <= now
        ORDER BY s.name FOR UPDATE
    LOOP
        due := (now - r.next_at) / r.period_ms + 1;
        n := least(due, 64);
        PERFORM {s}.insert_jobs(
            array_fill(r.queue::text, ARRAY[n]),
            array_fill(r.payload, ARRAY[n]),
            ARRAY(SELECT coalesce(left(r.headers, -1) || ',', '{')
                || '"alkstore-boundary":"' || (r.next_at + k * r.period_ms)
                || '","alkstore-schedule":' || to_json(r.name::text)::text || '}'
                FROM generate_series(0, n - 1) k ORDER BY k),
            array_fill(r.priority, ARRAY[n]),
            array_fill(0::bigint, ARRAY[n]),
            array_fill(NULL::bigint, ARRAY[n]),
            array_fill(r.expires_ms, ARRAY[n]),
            array_fill(NULL::text, ARRAY[n]),
            array_fill(coalesce(r.max_attempts, 3), ARRAY[n]),
            array_fill(coalesce(r.visibility_ms, 300000), ARRAY[n]),
            array_fill(coalesce(r.retry_base_ms, 5000), ARRAY[n]),
            array_fill(r.retention_ms, ARRAY[n]));
        fired := fired + n;
        UPDATE {s}.schedules s SET
                next_at = least(r.next_at + due * r.period_ms, 253402300799999)
            WHERE s.name = r.name;
    END LOOP;
    SELECT s.next_at INTO next_at FROM {s}.schedules s WHERE NOT s.paused
        ORDER BY s.next_at LIMIT 1;
END
$$;
