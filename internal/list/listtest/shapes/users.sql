CREATE TABLE public.account_user (
    id          serial PRIMARY KEY,
    uuid        uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    email       varchar(254) NOT NULL UNIQUE,
    first_name  varchar(256) NOT NULL,
    last_name   varchar(256) NOT NULL,
    is_staff    bool NOT NULL,
    is_active   bool NOT NULL,
    metadata    jsonb,
    date_joined timestamptz NOT NULL
);
-- rows
INSERT INTO public.account_user (email, first_name, last_name, is_staff, is_active, metadata, date_joined)
SELECT n || '@example.org', 'Ana ' || n % 10, 'Lee ' || n % 9, n % 20 = 0, n % 6 > 0, CASE WHEN n % 2 = 0 THEN '{"vip": true}'::jsonb END, '2025-06-01Z'::timestamptz + n * interval '1 s'
FROM generate_series($from, $to) n
