-- Sample rows. Each draw is a hash of seed, row and question: partitions by hash depend on
-- hashint8extended, so it is the same on every machine and in every version.

CREATE OR REPLACE FUNCTION pg_temp.draws(seed bigint, r bigint) RETURNS int[] IMMUTABLE LANGUAGE sql AS
    'SELECT array_agg((hashint8extended(r * 32 + k, seed) & 2147483647)::int ORDER BY k) FROM generate_series(1, 24) k';
CREATE OR REPLACE FUNCTION pg_temp.pick(list jsonb, draw int) RETURNS text IMMUTABLE LANGUAGE sql AS
    'SELECT list ->> draw % jsonb_array_length(list)';
CREATE OR REPLACE FUNCTION pg_temp.letter(draw int) RETURNS text IMMUTABLE LANGUAGE sql AS 'SELECT chr(65 + draw % 26)';
CREATE OR REPLACE FUNCTION pg_temp.scaled(n bigint, scale int) RETURNS numeric IMMUTABLE LANGUAGE sql AS
    'SELECT round(n / 10::numeric ^ scale, scale)';
CREATE OR REPLACE FUNCTION pg_temp.sample_id(workspace uuid, kind text, r bigint) RETURNS uuid IMMUTABLE LANGUAGE sql AS
    $$SELECT overlay(overlay(md5(workspace || kind || r) PLACING '4' FROM 13) PLACING 'a' FROM 17)::uuid$$;

-- d are the draws of a row, n those of its name and c those of its time: sometimes those of the row before, so that rows tie.
CREATE OR REPLACE FUNCTION pg_temp.sample(seed bigint, words jsonb, first bigint, last bigint, OUT r bigint, OUT d int[], OUT n int[],
    OUT lang jsonb, OUT active bool, OUT created_at timestamptz) RETURNS SETOF record LANGUAGE sql AS $$
    WITH shares AS MATERIALIZED (
        SELECT array_agg(l) AS of_100 FROM jsonb_array_elements(words -> 'languages') l, generate_series(1, (l ->> 'share')::int))
    SELECT r, d, n, of_100[1 + n[1] % 100], d[23] % 30 > 0,
        timestamptz '2019-01-01Z' + c[2] % 2557 * interval '1 day' + c[3] % 86400000 * interval '1 millisecond'
    FROM shares, generate_series(first, last) r, pg_temp.draws(seed, r) d,
        pg_temp.draws(seed + 1, r - (d[1] % 25 = 0)::int) n, pg_temp.draws(seed + 2, r - (d[2] % 8 = 0)::int) c
$$;

CREATE OR REPLACE FUNCTION pg_temp.sample_items(workspace uuid, seed bigint, words jsonb, first bigint, last bigint, contacts int) RETURNS void LANGUAGE sql AS $$
    INSERT INTO items (workspace_id, id, name, type, sku, description, unit, image_path, preferred_contact_id, cost_price, avg_cost,
        selling_price, taxable, track_stock, stock_on_hand, reorder_point, usage_30, active, created_at)
    SELECT workspace, pg_temp.sample_id(workspace, 'items', r), name, CASE WHEN service THEN 'SERVICE' ELSE 'GOODS' END,
        CASE WHEN d[3] % 10 > 0 THEN pg_temp.letter(d[4]) || pg_temp.letter(d[5]) || '-' || lpad((d[6] % 1000000)::text, 6, '0') END,
        CASE WHEN d[7] % 3 > 0 THEN replace(pg_temp.pick(lang -> 'sentences', n[7]), '%s', name) END,
        CASE WHEN NOT service AND d[8] % 6 > 0 THEN pg_temp.pick(lang -> 'units', n[8]) END,
        CASE WHEN d[9] % 3 = 0 THEN '/images/' || lpad(to_hex(d[10] % 256), 2, '0') || '/' || lpad(to_hex(d[11] % 16777216), 6, '0') || '.jpg' END,
        CASE WHEN contacts > 0 AND d[12] % 3 > 0 THEN pg_temp.sample_id(workspace, 'contacts', d[13] % ((contacts + 3) / 4) * 4) END, -- a supplier
        CASE d[14] % 12 WHEN 0 THEN pg_temp.scaled(cents / 100, 0) WHEN 1 THEN pg_temp.scaled(cents * 100 + d[15] % 100, 4)
            WHEN 2 THEN pg_temp.scaled(0, d[15] % 3) ELSE pg_temp.scaled(cents, 2) END,
        pg_temp.scaled(cents * (95 + d[16] % 11), 4), pg_temp.scaled(cents * (110 + d[17] % 150) / 100, 2), d[18] % 7 > 0, tracked,
        CASE WHEN NOT tracked THEN 0 WHEN d[21] % 50 = 0 THEN pg_temp.scaled(d[22] % (reorder * one + 1), scale) -- low
            WHEN d[21] % 50 = 1 THEN pg_temp.scaled(-1 - d[22] % (20 * one), scale) -- more was sold than was entered as received
            ELSE pg_temp.scaled((reorder + 1) * one + d[22] % (400 * one), scale) END,
        CASE WHEN tracked AND d[20] % 3 > 0 THEN reorder END,
        CASE WHEN tracked THEN pg_temp.scaled(greatest(0, d[24] % (300 * one) - 60 * one), scale) ELSE 0 END, active, created_at
    FROM pg_temp.sample(seed, words, first, last),
        LATERAL (SELECT pg_temp.pick(lang -> 'nouns', n[2]) AS noun, pg_temp.pick(lang -> 'adjectives', n[3]) AS adjective, d[19] % 20 = 0 AS service,
            5 + d[20] % 50 AS reorder, (ARRAY[0, 0, 0, 0, 0, 1, 1, 2, 3])[1 + d[15] % 9] AS scale, -- some things are weighed
            1 + d[6]::bigint % (ARRAY[500, 2000, 10000, 100000, 1000000])[1 + d[7] % 5] AS cents) a,
        LATERAL (SELECT CASE WHEN lang ? 'after' THEN noun || (lang ->> 'joint') || adjective ELSE adjective || (lang ->> 'joint') || noun END
            || pg_temp.pick(words -> 'variants', n[4]) || CASE WHEN n[5] % 60 = 0 THEN ' ' || pg_temp.pick(words -> 'emoji', n[6]) ELSE '' END AS name,
            NOT service AND d[21] % 4 > 0 AS tracked, (10 ^ scale)::int AS one) b
$$;

CREATE OR REPLACE FUNCTION pg_temp.sample_contacts(workspace uuid, seed bigint, words jsonb, first bigint, last bigint, contacts int) RETURNS void LANGUAGE sql AS $$
    INSERT INTO contacts (workspace_id, id, name, email, phone, address, tin, is_customer, is_supplier, active, created_at)
    SELECT workspace, pg_temp.sample_id(workspace, 'contacts', r), replace(CASE WHEN n[2] % 2 = 0 THEN pg_temp.pick(lang -> 'firms', n[3])
            WHEN lang ? 'familyLast' THEN given || ' %s' ELSE '%s' || (lang ->> 'joint') || given END, '%s', pg_temp.pick(lang -> 'family', n[4])),
        CASE WHEN d[3] % 4 > 0 THEN (ARRAY['info', 'sales', 'orders', 'office', 'hello', 'köln'])[1 + d[4] % 6] || d[5] % 100000
            || '@example.' || (ARRAY['com', 'org', 'net'])[1 + d[6] % 3] END,
        CASE WHEN d[7] % 4 > 0 THEN (SELECT string_agg(CASE c WHEN '#' THEN ((d[8] / (i + 1)) % 10)::text ELSE c END, '' ORDER BY i)
            FROM regexp_split_to_table(lang ->> 'phone', '') WITH ORDINALITY AS phone (c, i)) END,
        CASE WHEN d[9] % 3 > 0 THEN pg_temp.pick(lang -> 'streets', d[10]) || ' ' || 1 + d[11] % 200 || ', ' || pg_temp.pick(lang -> 'cities', d[12]) END,
        CASE WHEN d[13] % 2 = 0 THEN pg_temp.letter(d[14]) || pg_temp.letter(d[15]) || lpad((d[16] % 1000000000)::text, 9, '0') END,
        r % 4 > 0 OR d[17] % 5 = 0, r % 4 = 0, active, created_at
    FROM pg_temp.sample(seed, words, first, last), LATERAL (SELECT pg_temp.pick(lang -> 'given', n[5]) AS given) a
$$;
