CREATE SCHEMA shop;
CREATE TABLE shop.products (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account_id  int NOT NULL,
    title       text NOT NULL,
    code        text,
    price_cents int NOT NULL,
    on_hand     int NOT NULL DEFAULT 0,
    kind        text NOT NULL,
    deleted_at  timestamptz,
    inserted_at timestamptz NOT NULL DEFAULT now()
);
-- rows
INSERT INTO shop.products (account_id, title, code, price_cents, on_hand, kind, deleted_at, inserted_at)
SELECT n % 3, 'Product ' || n % 97 || chr(n % 90 + 200), CASE WHEN n % 4 > 0 THEN 'C-' || n END, n % 1000, n % 17 - 1, CASE WHEN n % 11 = 0 THEN 'service' ELSE 'goods' END,
    CASE WHEN n % 13 = 0 THEN now() END, '2024-01-01Z'::timestamptz + n / 2 * interval '1 hour 0.123456 s'
FROM generate_series($from, $to) n
