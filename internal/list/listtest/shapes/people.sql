CREATE SCHEMA crm;
CREATE TABLE crm.people (
    id        text NOT NULL,
    org_id    int NOT NULL,
    full_name text NOT NULL,
    mail      text,
    tel       text,
    vat       text,
    is_vendor bool NOT NULL DEFAULT false,
    created   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (org_id, id)
);
-- rows
INSERT INTO crm.people
SELECT 'p' || n || CASE n % 5 WHEN 0 THEN 'é' ELSE '' END, n % 3, 'Person ' || n % 101 || chr(n % 200 + 300), CASE WHEN n % 3 > 0 THEN n || '@example.org' END,
    CASE WHEN n % 2 > 0 THEN '+49 30 ' || n END, NULL, n % 9 = 0, '2025-01-01Z'::timestamptz - n / 3 * interval '1 day'
FROM generate_series($from, $to) n
