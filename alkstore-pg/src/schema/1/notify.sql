-- The notifications that carry a channel's messages. Names of ours may be longer than those of
-- Postgres; and who listens to one channel isn't sent what goes to another.
CREATE FUNCTION {s}.message_channel(p_channel text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT {messages} || '_' || left(encode(sha256(convert_to(p_channel, 'UTF8')), 'hex'), 24)
$$;

-- Sends a message at commit, in pieces that Postgres carries (it takes less than 8000 bytes), each
-- of which tells its message, how many come after it and, the first one, the channel. The number
-- of the message keeps equal ones of a transaction apart.
CREATE FUNCTION {s}.send_message(p_channel text, p_payload text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    message text := left(replace(gen_random_uuid()::text, '-', ''), 16);
    -- In characters, of which each takes up to four bytes.
    size integer := 1900;
    last integer := (length(p_payload) - 1) / size;
BEGIN
    FOR i IN 0..last LOOP
        PERFORM pg_notify({s}.message_channel(p_channel),
            CASE WHEN i = 0
                THEN 'm' || message || ' ' || last || ' ' || octet_length(p_channel) || ' '
                    || p_channel
                ELSE '+' || message || ' ' || last - i || ' '
            END || substr(p_payload, i * size + 1, size));
    END LOOP;
END
$$;
