CREATE TABLE public.res_partner (
    id          serial PRIMARY KEY,
    name        varchar NOT NULL,
    company_id  int,
    parent_id   int REFERENCES public.res_partner,
    type        varchar,
    email       varchar,
    phone       varchar,
    vat         varchar,
    is_company  bool,
    active      bool,
    color       int,
    partner_latitude numeric,
    create_date timestamp NOT NULL DEFAULT now()
);
-- rows
INSERT INTO public.res_partner (name, company_id, type, email, phone, is_company, active, color, partner_latitude, create_date)
SELECT 'Partner ' || n % 50, nullif(n % 4, 0), CASE WHEN n % 3 = 0 THEN 'delivery' ELSE 'contact' END, n || '@example.org', NULL, n % 2 = 0, nullif(n % 10, 0) > 1, n % 5,
    n / 7.0, '2025-06-01'::timestamp + n * interval '0.000001 s'
FROM generate_series($from, $to) n
