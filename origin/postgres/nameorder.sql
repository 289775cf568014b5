-- Whether names are in the schema's order, and the ranks in it of the 95 printable
-- ASCII characters, from the first on. It is the schema's order if the collation is
-- the one that the migrations made, of the ICU that made the indexes, and if all
-- pairs of characters, and each alone, are in the order of their characters' ranks.
WITH alone AS MATERIALIZED (
    SELECT n, chr(n) AS c, dense_rank() OVER (ORDER BY chr(n) COLLATE public.name_order) AS rank FROM generate_series(32, 126) n),
pair AS (
    SELECT dense_rank() OVER (ORDER BY (a.c || b.c) COLLATE public.name_order) AS rank,
        dense_rank() OVER (ORDER BY a.rank, b.rank) AS expected
    FROM alone a, (SELECT c, rank FROM alone UNION ALL SELECT '', 0) b)
SELECT EXISTS (SELECT FROM pg_collation c
        WHERE oid = 'public.name_order'::regcollation AND collprovider = 'i' AND NOT collisdeterministic
            -- the locale's column has another name in each of Postgres 17, 15 and 14
            AND coalesce(to_jsonb(c) ->> 'colllocale', to_jsonb(c) ->> 'colliculocale', collcollate) = 'und-u-ks-level2'
            AND to_jsonb(c) ->> 'collicurules' IS NULL
            AND collversion = pg_collation_actual_version(oid))
        AND (SELECT bool_and(rank = expected) FROM pair),
    (SELECT array_agg(rank::int ORDER BY n) FROM alone)
