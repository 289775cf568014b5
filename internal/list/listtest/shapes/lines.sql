CREATE EXTENSION IF NOT EXISTS citext;
CREATE SCHEMA "My Shop";
CREATE TYPE "My Shop"."Mood" AS ENUM ('so "so"', 'Good', 'it''s bad');
CREATE DOMAIN "My Shop".money AS numeric(12,2) CHECK (VALUE >= 0);
CREATE DOMAIN "My Shop".required AS text NOT NULL;
CREATE TABLE "My Shop"."Order.Lines" (
    "Key"      uuid NOT NULL DEFAULT gen_random_uuid(),
    "Tenant ""T""" text NOT NULL,
    "Label"    "My Shop".required,
    mail       citext,
    mood       "My Shop"."Mood" NOT NULL,
    price      "My Shop".money NOT NULL,
    ratio      float8,
    short      smallint NOT NULL,
    code       char(6) NOT NULL,
    day        date NOT NULL,
    stamp      timestamp(3),
    meta       json,
    tags       text[],
    total      numeric GENERATED ALWAYS AS (price * 2) STORED,
    CONSTRAINT "Order.Lines key" UNIQUE ("Key", "Tenant ""T""")
);
-- rows
INSERT INTO "My Shop"."Order.Lines" ("Tenant ""T""", "Label", mail, mood, price, ratio, short, code, day, stamp, meta)
SELECT (ARRAY['a', 'b "c"', 'd'])[n % 3 + 1], 'Label ' || n % 31, 'A' || n || '@Example.org', (ARRAY['so "so"', 'Good', 'it''s bad'])[n % 3 + 1]::"My Shop"."Mood", n / 3.0, n / 7.0, n % 300 - 100,
    'C' || n % 9, '2025-01-01'::date + n % 365, CASE WHEN n % 2 = 0 THEN '2025-01-01'::timestamp + n * interval '1.5 s' END, CASE WHEN n % 5 = 0 THEN '{"a" : [1,  2]}'::json END
FROM generate_series($from, $to) n
