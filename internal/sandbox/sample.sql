-- Sample rows, in one transaction. Each draw is a hash of seed, row and question: partitions by hash depend on
-- hashint8extended, so it is the same on every machine and in every version.
BEGIN;
SET LOCAL statement_timeout = 0;

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

-- sample_workspace makes the n-th workspace. Its id is the same in every database.
CREATE OR REPLACE FUNCTION pg_temp.sample_workspace(n int, items int, contacts int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    workspace uuid := md5('sample workspace ' || n);
    seed bigint := 1000003 + n * 8;
    words jsonb := pg_temp.sample_words();
BEGIN
    INSERT INTO workspaces (id, name, created_at) VALUES (workspace, 'Sample workspace ' || n, timestamptz '2019-01-01Z' + n * interval '1 minute');
    PERFORM pg_temp.sample_contacts(workspace, seed, words, 0, contacts - 1, contacts);
    PERFORM pg_temp.sample_items(workspace, seed + 4, words, 0, items - 1, contacts);
END $$;

CREATE OR REPLACE FUNCTION pg_temp.sample_words() RETURNS jsonb IMMUTABLE LANGUAGE sql AS $$ SELECT $words$
{
  "languages": [
    {
      "share": 52,
      "joint": " ",
      "familyLast": true,
      "adjectives": ["Stainless","Heavy-Duty","Organic","Classic","Compact","Insulated","Galvanized","Recycled","Premium","Waterproof","Cordless","Folding","Smoked","Roasted","Dark","Light","Extra Fine","Double-Walled","Hand-Made","Unsalted","Reinforced","Adjustable","Magnetic","Anti-Slip","Fireproof","Silent","Refurbished","Thermal","Soft","Natural"],
      "nouns": ["Steel Bolt","Hex Nut","Washer","Hinge","Cable Tie","Extension Lead","Socket Wrench","Paint Roller","Work Glove","Safety Helmet","Coffee Beans","Green Tea","Olive Oil","Sea Salt","Almond Butter","Maple Syrup","Cheddar","Rye Bread","Granola","Chutney","Desk Lamp","Office Chair","Notebook","Ballpoint Pen","Envelope","Printer Paper","Whiteboard","USB Cable","Keyboard","Monitor Arm","Water Bottle","Lunch Box","Tote Bag","Rain Jacket","Wool Socks","Running Shoe","Yoga Mat","Garden Hose","Plant Pot","Dog Leash"],
      "sentences": ["%s, as used in our own workshop.","Sold singly or by the case. Best before the end of next year.","New recipe: \"less sugar, more taste\".","Ships in 2-3 days; 100% recyclable packaging.","Fits models A_1 to A_9\nand all earlier ones."],
      "units": ["pcs","box","kg","l","m","pair","12 x 330 ml"],
      "given": ["Amelia","Oliver","Grace","Noah","Isla","Leo","Chloë","Jack","Zoe","Samuel","Ruth","Conor"],
      "family": ["Baker","O'Neill","Smith","Okafor","Hughes","MacDonald","Taylor","Whitfield","Patel","Brontë","Nguyen-Clarke","Fletcher"],
      "firms": ["%s & Sons","%s Ltd","%s Hardware","The %s Trading Company","%s Foods, Inc."],
      "streets": ["High Street","Mill Lane","Station Road","King's Parade"],
      "cities": ["Leeds","Cork","Boston","Wellington"],
      "phone": "(171) 555-####"
    },
    {
      "share": 7,
      "joint": " ",
      "familyLast": true,
      "adjectives": ["Großer","Kleiner","Süßer","Grüner","Weißer","Geräucherter","Verzinkter"],
      "nouns": ["Schlüssel","Käse","Honig","Pinsel","Dübel","Kühlschrank","Kräutertee","Spaß-Ball","Schuhlöffel"],
      "sentences": ["%s aus eigener Fertigung, geprüft nach DIN.","Lieferung in 3 Tagen; Übergrößen auf Anfrage."],
      "units": ["Stück","Karton","kg"],
      "given": ["Jürgen","Anna","Käthe","Björn","Max"],
      "family": ["Müller","Groß","Weiß","Schäfer","von der Höh","Öztürk"],
      "firms": ["%s GmbH","Gebrüder %s OHG","%s & Töchter"],
      "streets": ["Obere Straße","Königsallee"],
      "cities": ["Köln","Zürich","Graz"],
      "phone": "+49 30 #######"
    },
    {
      "share": 7,
      "joint": " ",
      "after": true,
      "familyLast": true,
      "adjectives": ["fumé","léger","épais","français","à l'ancienne","sucré","glacé"],
      "nouns": ["Pâté","Fromage","Café","Thé","Crayon","Gâteau","Câble","Sirop d'érable","Bœuf"],
      "sentences": ["%s : qualité supérieure, élevé en fût.","À conserver au frais après ouverture."],
      "units": ["pièce","carton","kg"],
      "given": ["Zoé","Rémi","François","Noëlle","Élodie"],
      "family": ["Lefèvre","Dupont","Béranger","L'Hôpital","Saint-Exupéry"],
      "firms": ["Maison %s","%s et Cie","Établissements %s"],
      "streets": ["rue de l'Église","quai aux Fleurs"],
      "cities": ["Nîmes","Liège","Québec"],
      "phone": "+33 1 ## ## ## ##"
    },
    {
      "share": 6,
      "joint": " ",
      "after": true,
      "familyLast": true,
      "adjectives": ["pequeño","añejo","picante","rápido","eléctrico","español"],
      "nouns": ["Jamón","Queso","Piñón","Cinturón","Azafrán","Jabón","Café","Pimentón"],
      "sentences": ["%s de la región, ¡pruébelo!","Envío en 24 horas."],
      "units": ["unidad","caja","kg"],
      "given": ["José","Begoña","Íñigo","Lucía","Ana"],
      "family": ["Muñoz","Trujillo","Ibáñez","Pérez","Núñez de Balboa"],
      "firms": ["%s Hermanos, S.A.","Ferretería %s","Comercial %s"],
      "streets": ["Avda. de la Constitución","Calle Mayor"],
      "cities": ["México D.F.","Logroño","Bogotá"],
      "phone": "(5) 555-####"
    },
    {
      "share": 5,
      "joint": " ",
      "familyLast": true,
      "adjectives": ["Μικρός","Μεγάλος","Ελληνικός","Άσπρος","Γλυκός"],
      "nouns": ["Καφές","Πίνακας","Χυμός","Σάκος","Φακός","Οίνος"],
      "sentences": ["%s, άριστης ποιότητας.","Παράδοση εντός τριών ημερών."],
      "units": ["τεμάχιο","κιβώτιο"],
      "given": ["Γιώργος","Ελένη","Οδυσσέας","Άννα"],
      "family": ["Παπαδόπουλος","Ιωάννου","Καραγιάννης","Ξένος"],
      "firms": ["%s Α.Ε.","Αφοί %s","%s και Υιοί"],
      "streets": ["Οδός Ερμού","Λεωφόρος Συγγρού"],
      "cities": ["Αθήνα","Θεσσαλονίκη"],
      "phone": "+30 21# #######"
    },
    {
      "share": 7,
      "joint": " ",
      "familyLast": true,
      "adjectives": ["Чёрный","Большой","Копчёный","Стальной","Новый","Тёмный"],
      "nouns": ["чай","хлеб","болт","ключ","сыр","мёд","ёж-ёршик","шоколад"],
      "sentences": ["%s высшего сорта.","Хранить в сухом месте; срок годности 12 месяцев."],
      "units": ["шт","кг","уп"],
      "given": ["Иван","Ольга","Фёдор","Наталья"],
      "family": ["Иваненко","Шевченко","Коваленко","Щедрый"],
      "firms": ["ООО «%s»","Торговый дом «%s»","%s и партнёры"],
      "streets": ["ул. Лесная","пр. Мира"],
      "cities": ["Київ","Алматы"],
      "phone": "+7 495 ###-##-##"
    },
    {
      "share": 5,
      "joint": "",
      "adjectives": ["新鮮な","小さな","特製","国産","有機"],
      "nouns": ["緑茶","ボルト","ノート","味噌","りんご","ガラス瓶","鉛筆"],
      "sentences": ["%sは、当店の人気商品です。","送料無料。最短で翌日にお届けします。"],
      "units": ["個","箱","本"],
      "given": ["太郎","花子","さくら","健"],
      "family": ["田中","鈴木","高橋","渡邉"],
      "firms": ["株式会社%s","%s商店","%s製作所"],
      "streets": ["中央1丁目","本町2丁目"],
      "cities": ["東京都","京都市"],
      "phone": "03-####-####"
    },
    {
      "share": 4,
      "joint": "",
      "adjectives": ["新鲜","优质","大号","不锈钢","黑色"],
      "nouns": ["螺丝","茶叶","水杯","雨伞","手套","酱油"],
      "sentences": ["%s,品质保证。","三日内发货,包邮。"],
      "units": ["件","盒"],
      "given": ["伟","芳","秀英","𠮷"],
      "family": ["王","李","张","欧阳"],
      "firms": ["%s氏贸易有限公司","%s记食品厂"],
      "streets": ["人民路","南京东路"],
      "cities": ["上海","廣州"],
      "phone": "+86 10 ########"
    },
    {
      "share": 2,
      "joint": " ",
      "adjectives": ["매운","작은","신선한"],
      "nouns": ["김치","볼트","공책","인삼차"],
      "sentences": ["%s, 인기 상품입니다."],
      "units": ["개","상자"],
      "given": ["민준","서연"],
      "family": ["김","이","박"],
      "firms": ["%s상사","주식회사 %s"],
      "streets": ["세종대로"],
      "cities": ["서울","부산"],
      "phone": "+82 2-###-####"
    },
    {
      "share": 2,
      "joint": " ",
      "after": true,
      "familyLast": true,
      "adjectives": ["أخضر","كبير","طازج"],
      "nouns": ["شاي","مفتاح","خبز","دفتر"],
      "sentences": ["%s من أجود الأنواع."],
      "units": ["قطعة","علبة"],
      "given": ["أحمد","ليلى"],
      "family": ["الهاشمي","منصور"],
      "firms": ["شركة %s","%s وأولاده"],
      "streets": ["شارع النيل"],
      "cities": ["القاهرة","عمّان"],
      "phone": "+20 2 ########"
    },
    {
      "share": 1,
      "joint": " ",
      "after": true,
      "familyLast": true,
      "adjectives": ["גדול","ירוק"],
      "nouns": ["תה","בורג","לחם"],
      "sentences": ["%s באיכות גבוהה."],
      "units": ["יח׳"],
      "given": ["נועה","דוד"],
      "family": ["כהן","לוי"],
      "firms": ["%s בע״מ"],
      "streets": ["רחוב הרצל"],
      "cities": ["חיפה"],
      "phone": "+972 4-#######"
    },
    {
      "share": 2,
      "joint": " ",
      "familyLast": true,
      "adjectives": ["İnce","Kırmızı","Taze","Büyük"],
      "nouns": ["Çay","Fındık","Işık","İplik","Vida"],
      "sentences": ["%s, günlük üretim."],
      "units": ["adet","koli"],
      "given": ["İbrahim","Ayşe"],
      "family": ["Yılmaz","Çelik"],
      "firms": ["%s Ticaret A.Ş."],
      "streets": ["İstiklâl Caddesi"],
      "cities": ["İstanbul","Diyarbakır"],
      "phone": "+90 212 ### ####"
    }
  ],
  "variants": ["","","",""," 500 ml"," 1 kg"," 2 kg"," M6"," M8 × 40"," A4"," XL"," 12 V"," 50%"," (2024)"," №5"," 2-pack"," 10-pack"," 1½\""],
  "emoji": ["🌶️","🍏","⚙️","👩🏽‍🌾","🇬🇷","☕","📦"]
}
$words$::jsonb $$;
