-- owner: nothing where nobody holds it; the row stays and counts the acquisitions.
CREATE TABLE {s}.locks (
    name text COLLATE "C" PRIMARY KEY,
    token bigint NOT NULL,
    owner text,
    expires_at bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200);

-- taken: whether it is the caller's. until: when that, or the other's hold, ends.
CREATE FUNCTION {s}.acquire_lock(
    p_name text, p_owner text, p_ttl bigint,
    OUT taken boolean, OUT token bigint, OUT until bigint, OUT us bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    us := {s}.clock_us();
    LOOP
        SELECT l.expires_at INTO until FROM {s}.locks l
            WHERE l.name = p_name AND l.owner IS NOT NULL AND l.expires_at > us / 1000;
        IF FOUND THEN
            taken := false;
            RETURN;
        END IF;
        INSERT INTO {s}.locks AS l (name, token, owner, expires_at)
            VALUES (p_name, 1, p_owner, {s}.after_ms(us, p_ttl))
            ON CONFLICT (name) DO UPDATE
                SET token = l.token + 1, owner = excluded.owner, expires_at = excluded.expires_at
                WHERE l.owner IS NULL OR l.expires_at <= us / 1000
            RETURNING l.token, l.expires_at INTO token, until;
        IF FOUND THEN
            taken := true;
            RETURN;
        END IF;
    END LOOP;
END
$$;

CREATE FUNCTION {s}.renew_lock(p_name text, p_token bigint, p_ttl bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    us bigint;
    before bigint;
    until bigint;
BEGIN
    SELECT l.expires_at INTO before FROM {s}.locks l
        WHERE l.name = p_name AND l.token = p_token AND l.owner IS NOT NULL FOR UPDATE;
    us := {s}.clock_us();
    IF before IS NULL OR before <= us / 1000 THEN
        RETURN NULL;
    END IF;
    until := {s}.after_ms(us, p_ttl);
    UPDATE {s}.locks SET expires_at = until WHERE name = p_name;
    IF until < before THEN
        PERFORM {s}.wake('l' || p_name);
    END IF;
    RETURN until;
END
$$;

CREATE FUNCTION {s}.release_lock(p_name text, p_token bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {s}.locks SET owner = NULL
        WHERE name = p_name AND token = p_token AND owner IS NOT NULL
            AND expires_at > {s}.now_ms();
    IF FOUND THEN
        PERFORM {s}.wake('l' || p_name);
    END IF;
    RETURN FOUND;
END
$$;
