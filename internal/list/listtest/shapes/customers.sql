CREATE TABLE public.customer (
    id           text PRIMARY KEY,
    company_name text,
    first_name   text,
    last_name    text,
    email        text,
    phone        text,
    has_account  bool NOT NULL DEFAULT false,
    metadata     jsonb,
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now(),
    deleted_at   timestamptz
);
-- rows
INSERT INTO public.customer (id, first_name, last_name, email, has_account, created_at, deleted_at)
SELECT 'cus_' || md5(n::text), 'Ana ' || n % 10, 'Lee', n || '@example.org', n % 3 = 0, '2025-06-01Z'::timestamptz + n % 100 * interval '1 s', CASE WHEN n % 8 = 0 THEN now() END
FROM generate_series($from, $to) n
