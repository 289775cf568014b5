CREATE SCHEMA log;
CREATE TABLE log.events (
    id    bigint GENERATED ALWAYS AS IDENTITY,
    at    timestamptz NOT NULL DEFAULT now(),
    topic varchar(40) NOT NULL,
    body  jsonb NOT NULL,
    PRIMARY KEY (id, at)
) PARTITION BY RANGE (at);
CREATE TABLE log.events_2025 PARTITION OF log.events FOR VALUES FROM ('2025-01-01Z') TO ('2026-01-01Z');
CREATE TABLE log.events_2026 PARTITION OF log.events FOR VALUES FROM ('2026-01-01Z') TO ('2027-01-01Z');
CREATE TABLE log.events_other PARTITION OF log.events DEFAULT;
-- rows
INSERT INTO log.events (at, topic, body)
SELECT '2025-12-30Z'::timestamptz + n * interval '7 minutes', 'topic ' || n % 7, jsonb_build_object('n', n, 'text', E'line\n"' || chr(8232))
FROM generate_series($from, $to) n
