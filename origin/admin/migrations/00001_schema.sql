-- What every database needs, whatever its lists are: keys, functions, usage, audit. Other systems write the
-- first two tables, so their names and columns are part of the contract, and IF NOT EXISTS: Down, which
-- `migrate remove` runs, leaves them. Constraints refuse what the commands cannot show.
-- What follows a migration every time: the tables of the contract (../contract.sql), and what needs rights that
-- a migration may lack, the publication (planner.publish in ../lists.go) and the slot (origin/follower/primary.go).

-- +goose Up
CREATE TABLE IF NOT EXISTS workspaces (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    name            text NOT NULL CHECK (name <> '') CONSTRAINT workspaces_name_size CHECK (octet_length(name) <= 65536),
    tenant          text CONSTRAINT workspaces_tenant CHECK (tenant <> '' AND octet_length(tenant) <= 255), -- whose rows of lists it sees; NULL = its id
    suspended_at    timestamptz,
    rate_per_second float8 CHECK (rate_per_second >= 0 AND rate_per_second < 'Infinity'),
    burst           int CHECK (burst >= 1),
    created_at      timestamptz NOT NULL DEFAULT now() CHECK (created_at >= '0001-01-01Z' AND created_at < '10000-01-01Z'),
    quota           bigint, -- requests in each calendar day or month (UTC), beside the rate
    quota_period    text,
    CONSTRAINT workspaces_quota CHECK (
        quota IS NULL AND quota_period IS NULL
        OR quota IS NOT NULL AND quota_period IS NOT NULL AND quota BETWEEN 1 AND 4000000000 AND quota_period IN ('day', 'month'))
);
CREATE UNIQUE INDEX listedge_workspaces_by_tenant ON workspaces ((coalesce(tenant, id::text)));

CREATE TABLE IF NOT EXISTS api_keys (
    id              uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    workspace_id    uuid NOT NULL REFERENCES workspaces (id) ON DELETE CASCADE,
    name            text NOT NULL DEFAULT '' CONSTRAINT api_keys_name_size CHECK (octet_length(name) <= 65536),
    key_hash        bytea NOT NULL UNIQUE CHECK (length(key_hash) = 32),
    key_prefix      text NOT NULL CONSTRAINT api_keys_key_prefix_size CHECK (octet_length(key_prefix) <= 65536),
    scopes          text[] NOT NULL CHECK (scopes::text ~ '^\{([a-z][a-z0-9-]{0,31}:read(,[a-z][a-z0-9-]{0,31}:read)*)?\}$')
                    CONSTRAINT api_keys_scopes_size CHECK (cardinality(scopes) <= 64),
    rate_per_second float8 CHECK (rate_per_second >= 0 AND rate_per_second < 'Infinity'),
    burst           int CHECK (burst >= 1),
    expires_at      timestamptz,
    revoked_at      timestamptz,
    created_at      timestamptz NOT NULL DEFAULT now() CHECK (created_at >= '0001-01-01Z' AND created_at < '10000-01-01Z')
);
CREATE INDEX listedge_api_keys_by_workspace ON api_keys (workspace_id, created_at, id);

-- The fold (see the function listedge_fold) of a text that is not ASCII. Letters that do not decompose
-- have a table for each script, since translate looks for every character in all of it.
-- +goose StatementBegin
CREATE FUNCTION listedge_fold_letters(t text) RETURNS text
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE STRICT AS $$
BEGIN
    -- Servers differ about characters younger than Unicode 13, if they are of these ranges.
    IF t COLLATE "C" !~ ('[\u086b-\u089f\u08c8-\u08d2\u0c3a-\u0c3c\u1715-\u171f\u1ac1-\u1aff\u1dfa\ua7cb-\ua7f4\U00010570-\U000105ff'
                '\U00010768-\U000107ff\U00010d3a-\U00010e5f\U00010eb2-\U00010eff\U00010f5a-\U00010faf\U00011070-\U0001107e'
                '\U00011375-\U000113ff\U00011ef9-\U00011faf\U00014647-\U000167ff\U00016b90-\U00016e3f\U0001bca4-\U0001cfff'
                '\U0001e02b-\U0001e0ff\U0001e150-\U0001e2bf\U0001e300-\U0001e7ff]') THEN
        t := normalize(t, NFKD);
    END IF;
    t := regexp_replace(t COLLATE "C", '[\u0300-\u036f]+', '', 'g');
    IF t COLLATE "C" ~ '[æœøØđĐðÐþħĦıłŁŧŦŋəÆŒßẞ]' THEN
        t := translate(t, 'æœøØđĐðÐþħĦıłŁŧŦŋə', 'ÆŒOODDDDÞHHILLTTŊƏ');
        t := replace(replace(replace(replace(t, 'Æ', 'AE'), 'Œ', 'OE'), 'ß', 'SS'), 'ẞ', 'SS');
    END IF;
    IF t COLLATE "C" ~ '[а-џґғҗҙқңҫүұһәө]' THEN
        t := translate(t, 'абвгдежзиклмнопрстуфхцчшщъыьэюяђєѕіјљњћџґғҗҙқңҫүұһәө',
                'АБВГДЕЖЗИКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯЂЄЅІЈЉЊЋЏҐҒҖҘҚҢҪҮҰҺӘӨ');
    END IF;
    IF t COLLATE "C" ~ '[α-ω]' THEN
        t := translate(t, 'αβγδεζηθικλμνξοπρςστυφχψω', 'ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΣΤΥΦΧΨΩ');
    END IF;
    IF t COLLATE "C" ~ '[ա-ֆა-ჿ]' THEN
        t := translate(t, 'աբգդեզէըթժիլխծկհձղճմյնշոչպջռսվտրցւփքօֆაბგდევზთიკლმნოპჟრსტუფქღყშჩცძწჭხჯჰჱჲჳჴჵჶჷჸჹჺჽჾჿ',
                'ԱԲԳԴԵԶԷԸԹԺԻԼԽԾԿՀՁՂՃՄՅՆՇՈՉՊՋՌՍՎՏՐՑՒՓՔՕՖᲐᲑᲒᲓᲔᲕᲖᲗᲘᲙᲚᲛᲜᲝᲞᲟᲠᲡᲢᲣᲤᲥᲦᲧᲨᲩᲪᲫᲬᲭᲮᲯᲰᲱᲲᲳᲴᲵᲶᲷᲸᲹᲺᲽᲾᲿ');
    END IF;
    IF t COLLATE "C" ~ ('[\u0180-\u0257\u025b-\u029e\u0371-\u037d\u03d7-\u03fb\u0461-\u048f\u0495\u049d-\u04a1\u04a5-\u04a9\u04ad\u04b3-\u04b9'
                '\u04bd-\u04d5\u04e1\u04f7-\u052f\u13f8-\u13fd\u1c80-\u1c88\u1d79-\u1d8e\u1efb-\u1eff\u214e-\u2184\u2c30-\u2d2d\ua641-\ua69b'
                '\ua723-\ua7f6\uab53-\uabbf\U00010428-\U0001044f\U000104d8-\U000104fb\U00010cc0-\U00010cf2\U000118c0-\U000118df'
                '\U00016e60-\U00016e7f\U0001e922-\U0001e943]') THEN
        t := translate(t,
                'ƀƃƅƈƌƒƕƙƚƞƣƥƨƭƴƶƹƽƿǝǥȝȣȥȼȿɀɂɇɉɋɍɏɐɑɒɓɔɖɗɛɜɠɡɣɥɦɨɩɪɫɬɯɱɲɵɽʀʂʃʇʈʉʊʋʌʒʝʞͱͳͷͻͼͽϗϙϛϝϟϡϣϥϧϩϫϭϯϳϸϻѡѣѥѧѩѫѭѯѱѳѵѹѻѽѿҁҋҍҏҕҝҟҡҥҧҩҭҳҵҷҹҽҿӄӆӈӊӌӎӏӕӡӷӻ'
                'ӽӿԁԃԅԇԉԋԍԏԑԓԕԗԙԛԝԟԡԣԥԧԩԫԭԯᏸᏹᏺᏻᏼᏽᲀᲁᲂᲃᲄᲅᲆᲇᲈᵹᵽᶎỻỽỿⅎↄⰰⰱⰲⰳⰴⰵⰶⰷⰸⰹⰺⰻⰼⰽⰾⰿⱀⱁⱂⱃⱄⱅⱆⱇⱈⱉⱊⱋⱌⱍⱎⱏⱐⱑⱒⱓⱔⱕⱖⱗⱘⱙⱚⱛⱜⱝⱞⱡⱥⱦⱨⱪⱬⱳⱶⲁⲃⲅⲇⲉⲋⲍⲏⲑⲓⲕⲗⲙⲛⲝⲟⲡⲣⲥⲧⲩⲫⲭⲯⲱⲳⲵⲷⲹⲻⲽ'
                'ⲿⳁⳃⳅⳇⳉⳋⳍⳏⳑⳓⳕⳗⳙⳛⳝⳟⳡⳣⳬⳮⳳⴀⴁⴂⴃⴄⴅⴆⴇⴈⴉⴊⴋⴌⴍⴎⴏⴐⴑⴒⴓⴔⴕⴖⴗⴘⴙⴚⴛⴜⴝⴞⴟⴠⴡⴢⴣⴤⴥⴧⴭꙁꙃꙅꙇꙉꙋꙍꙏꙑꙓꙕꙗꙙꙛꙝꙟꙡꙣꙥꙧꙩꙫꙭꚁꚃꚅꚇꚉꚋꚍꚏꚑꚓꚕꚗꚙꚛꜣꜥꜧꜩꜫꜭꜯꜳꜵꜷꜹꜻꜽꜿꝁꝃꝅꝇꝉꝋꝍꝏꝑꝓꝕꝗꝙꝛꝝꝟꝡꝣꝥꝧꝩꝫ'
                'ꝭꝯꝺꝼꝿꞁꞃꞅꞇꞌꞑꞓꞔꞗꞙꞛꞝꞟꞡꞣꞥꞧꞩꞵꞷꞹꞻꞽꞿꟃꟈꟊꟶꭓꭰꭱꭲꭳꭴꭵꭶꭷꭸꭹꭺꭻꭼꭽꭾꭿꮀꮁꮂꮃꮄꮅꮆꮇꮈꮉꮊꮋꮌꮍꮎꮏꮐꮑꮒꮓꮔꮕꮖꮗꮘꮙꮚꮛꮜꮝꮞꮟꮠꮡꮢꮣꮤꮥꮦꮧꮨꮩꮪꮫꮬꮭꮮꮯꮰꮱꮲꮳꮴꮵꮶꮷꮸꮹꮺꮻꮼꮽꮾꮿ𐐨𐐩𐐪𐐫𐐬𐐭𐐮𐐯𐐰𐐱𐐲𐐳𐐴𐐵𐐶𐐷𐐸𐐹𐐺𐐻𐐼'
                '𐐽𐐾𐐿𐑀𐑁𐑂𐑃𐑄𐑅𐑆𐑇𐑈𐑉𐑊𐑋𐑌𐑍𐑎𐑏𐓘𐓙𐓚𐓛𐓜𐓝𐓞𐓟𐓠𐓡𐓢𐓣𐓤𐓥𐓦𐓧𐓨𐓩𐓪𐓫𐓬𐓭𐓮𐓯𐓰𐓱𐓲𐓳𐓴𐓵𐓶𐓷𐓸𐓹𐓺𐓻𐳀𐳁𐳂𐳃𐳄𐳅𐳆𐳇𐳈𐳉𐳊𐳋𐳌𐳍𐳎𐳏𐳐𐳑𐳒𐳓𐳔𐳕𐳖𐳗𐳘𐳙𐳚𐳛𐳜𐳝𐳞𐳟𐳠𐳡𐳢𐳣𐳤𐳥𐳦𐳧𐳨𐳩𐳪𐳫𐳬𐳭𐳮𐳯𐳰𐳱𐳲𑣀𑣁𑣂𑣃𑣄𑣅𑣆𑣇𑣈𑣉𑣊𑣋𑣌𑣍𑣎𑣏𑣐𑣑𑣒𑣓𑣔𑣕𑣖𑣗𑣘𑣙𑣚𑣛𑣜'
                '𑣝𑣞𑣟𖹠𖹡𖹢𖹣𖹤𖹥𖹦𖹧𖹨𖹩𖹪𖹫𖹬𖹭𖹮𖹯𖹰𖹱𖹲𖹳𖹴𖹵𖹶𖹷𖹸𖹹𖹺𖹻𖹼𖹽𖹾𖹿𞤢𞤣𞤤𞤥𞤦𞤧𞤨𞤩𞤪𞤫𞤬𞤭𞤮𞤯𞤰𞤱𞤲𞤳𞤴𞤵𞤶𞤷𞤸𞤹𞤺𞤻𞤼𞤽𞤾𞤿𞥀𞥁𞥂𞥃',
                'ɃƂƄƇƋƑǶƘȽȠƢƤƧƬƳƵƸƼǷƎǤȜȢȤȻⱾⱿɁɆɈɊɌɎⱯⱭⱰƁƆƉƊƐꞫƓꞬƔꞍꞪƗƖꞮⱢꞭƜⱮƝƟⱤƦꟅƩꞱƮɄƱƲɅƷꞲꞰͰͲͶϽϾϿϏϘϚϜϞϠϢϤϦϨϪϬϮͿϷϺѠѢѤѦѨѪѬѮѰѲѴѸѺѼѾҀҊҌҎҔҜҞҠҤҦҨҬҲҴҶҸҼҾӃӅӇӉӋӍӀӔӠӶӺ'
                'ӼӾԀԂԄԆԈԊԌԎԐԒԔԖԘԚԜԞԠԢԤԦԨԪԬԮᏰᏱᏲᏳᏴᏵВДОСТТЪѢꙊꝽⱣꟆỺỼỾℲↃⰀⰁⰂⰃⰄⰅⰆⰇⰈⰉⰊⰋⰌⰍⰎⰏⰐⰑⰒⰓⰔⰕⰖⰗⰘⰙⰚⰛⰜⰝⰞⰟⰠⰡⰢⰣⰤⰥⰦⰧⰨⰩⰪⰫⰬⰭⰮⱠȺȾⱧⱩⱫⱲⱵⲀⲂⲄⲆⲈⲊⲌⲎⲐⲒⲔⲖⲘⲚⲜⲞⲠⲢⲤⲦⲨⲪⲬⲮⲰⲲⲴⲶⲸⲺⲼ'
                'ⲾⳀⳂⳄⳆⳈⳊⳌⳎⳐⳒⳔⳖⳘⳚⳜⳞⳠⳢⳫⳭⳲႠႡႢႣႤႥႦႧႨႩႪႫႬႭႮႯႰႱႲႳႴႵႶႷႸႹႺႻႼႽႾႿჀჁჂჃჄჅჇჍꙀꙂꙄꙆꙈꙊꙌꙎꙐꙒꙔꙖꙘꙚꙜꙞꙠꙢꙤꙦꙨꙪꙬꚀꚂꚄꚆꚈꚊꚌꚎꚐꚒꚔꚖꚘꚚꜢꜤꜦꜨꜪꜬꜮꜲꜴꜶꜸꜺꜼꜾꝀꝂꝄꝆꝈꝊꝌꝎꝐꝒꝔꝖꝘꝚꝜꝞꝠꝢꝤꝦꝨꝪ'
                'ꝬꝮꝹꝻꝾꞀꞂꞄꞆꞋꞐꞒꟄꞖꞘꞚꞜꞞꞠꞢꞤꞦꞨꞴꞶꞸꞺꞼꞾꟂꟇꟉꟵꞳᎠᎡᎢᎣᎤᎥᎦᎧᎨᎩᎪᎫᎬᎭᎮᎯᎰᎱᎲᎳᎴᎵᎶᎷᎸᎹᎺᎻᎼᎽᎾᎿᏀᏁᏂᏃᏄᏅᏆᏇᏈᏉᏊᏋᏌᏍᏎᏏᏐᏑᏒᏓᏔᏕᏖᏗᏘᏙᏚᏛᏜᏝᏞᏟᏠᏡᏢᏣᏤᏥᏦᏧᏨᏩᏪᏫᏬᏭᏮᏯ𐐀𐐁𐐂𐐃𐐄𐐅𐐆𐐇𐐈𐐉𐐊𐐋𐐌𐐍𐐎𐐏𐐐𐐑𐐒𐐓𐐔'
                '𐐕𐐖𐐗𐐘𐐙𐐚𐐛𐐜𐐝𐐞𐐟𐐠𐐡𐐢𐐣𐐤𐐥𐐦𐐧𐒰𐒱𐒲𐒳𐒴𐒵𐒶𐒷𐒸𐒹𐒺𐒻𐒼𐒽𐒾𐒿𐓀𐓁𐓂𐓃𐓄𐓅𐓆𐓇𐓈𐓉𐓊𐓋𐓌𐓍𐓎𐓏𐓐𐓑𐓒𐓓𐲀𐲁𐲂𐲃𐲄𐲅𐲆𐲇𐲈𐲉𐲊𐲋𐲌𐲍𐲎𐲏𐲐𐲑𐲒𐲓𐲔𐲕𐲖𐲗𐲘𐲙𐲚𐲛𐲜𐲝𐲞𐲟𐲠𐲡𐲢𐲣𐲤𐲥𐲦𐲧𐲨𐲩𐲪𐲫𐲬𐲭𐲮𐲯𐲰𐲱𐲲𑢠𑢡𑢢𑢣𑢤𑢥𑢦𑢧𑢨𑢩𑢪𑢫𑢬𑢭𑢮𑢯𑢰𑢱𑢲𑢳𑢴𑢵𑢶𑢷𑢸𑢹𑢺𑢻𑢼'
                '𑢽𑢾𑢿𖹀𖹁𖹂𖹃𖹄𖹅𖹆𖹇𖹈𖹉𖹊𖹋𖹌𖹍𖹎𖹏𖹐𖹑𖹒𖹓𖹔𖹕𖹖𖹗𖹘𖹙𖹚𖹛𖹜𖹝𖹞𖹟𞤀𞤁𞤂𞤃𞤄𞤅𞤆𞤇𞤈𞤉𞤊𞤋𞤌𞤍𞤎𞤏𞤐𞤑𞤒𞤓𞤔𞤕𞤖𞤗𞤘𞤙𞤚𞤛𞤜𞤝𞤞𞤟𞤠𞤡');
    END IF;
    RETURN upper(t COLLATE "C");
END
$$;
-- +goose StatementEnd

-- A text as lists by name and searches compare it: in upper case, without accents
-- and without differences of form. It is the same whatever the locale, ICU and
-- version of Postgres are, and the same as lists.Fold of the program.
CREATE FUNCTION listedge_fold(t text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN CASE WHEN octet_length(t) = length(t) THEN upper(t COLLATE "C") ELSE listedge_fold_letters(t) END;

-- The part of a folded name that orders it: as much as a cursor of 512 characters can
-- carry (80 characters of 4 bytes), and far below what a btree entry may hold,
-- so that a writer's long name is never refused.
CREATE FUNCTION listedge_name_key(name text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN listedge_fold(name)::varchar(80)::text; -- faster than left(…, 80): it counts no characters of a fold of 80 bytes

-- The grams of a folded text, as numbers. From Thai on (U+0E00: Thai, Lao, Myanmar,
-- Hangul, Khmer, kana, Han, emoji), where words are short, they are each character
-- and every two in a row; of the characters before, every three in a row. None has
-- a blank or line feed. A text that contains another has all of its grams.
-- The upper half of a number is a hash of the tenant: its grams lie side by side in the
-- index, so a writer touches few pages, and a reader no other tenant's. Where two tenants
-- or two grams have one hash, that costs time; rows are compared anyway.
-- In PL/pgSQL, whose plans a session keeps: one in SQL would be planned for each INSERT.
-- +goose StatementBegin
CREATE FUNCTION listedge_search_grams(tenant text, folded text) RETURNS bigint[]
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
DECLARE
    own   bigint := hashtext(tenant)::bigint << 32;
    chars text[]; -- blanks and line feeds are NULL
    short bigint[];
BEGIN
    IF folded COLLATE "C" ~ '[\u0E00-\U0010FFFF]' THEN
        chars := string_to_array(regexp_replace(folded COLLATE "C", '[^\u0E00-\U0010FFFF]', ' ', 'g'), NULL, ' ');
        short := ARRAY(
            SELECT own + hashtext(gram)
            FROM (SELECT unnest(chars) AS a, unnest(chars[2:]) AS b) two, LATERAL (VALUES (a), (a || b)) grams (gram)
            WHERE gram IS NOT NULL);
        folded := regexp_replace(folded COLLATE "C", '[\u0E00-\U0010FFFF]', ' ', 'g');
    END IF;
    chars := string_to_array(replace(folded COLLATE "C", E'\n', ' '), NULL, ' ');
    RETURN short || ARRAY(
        SELECT own + hashtext(a || b || c)
        FROM (SELECT unnest(chars) AS a, unnest(chars[2:]) AS b, unnest(chars[3:]) AS c) three
        WHERE a IS NOT NULL AND b IS NOT NULL AND c IS NOT NULL);
END
$$;
-- +goose StatementEnd

-- What each key was used for, by the hour, and when it was last used. Nodes write these
-- three tables and no others.
-- Rows of listedge_key_usage are kept for 35 days. fillfactor leaves room to update a row on its page:
-- that touches no index.
CREATE TABLE listedge_key_usage (
    workspace_id uuid NOT NULL,
    hour         timestamptz NOT NULL,
    key_id       uuid NOT NULL,
    requests     bigint NOT NULL,
    refused      bigint NOT NULL,
    not_modified bigint NOT NULL,
    bypassed     bigint NOT NULL,
    bytes        bigint NOT NULL,
    queries      bigint NOT NULL,
    PRIMARY KEY (workspace_id, hour, key_id)
) WITH (fillfactor = 70);
CREATE INDEX listedge_key_usage_by_hour ON listedge_key_usage (hour);

CREATE TABLE listedge_key_last_used (
    key_id       uuid PRIMARY KEY,
    last_used_at timestamptz NOT NULL
) WITH (fillfactor = 70);

-- The last batch that each run of a node has written: one that is sent again,
-- because its answer was lost, counts once.
CREATE TABLE listedge_usage_writers (
    run        uuid PRIMARY KEY,
    batch      bigint NOT NULL,
    written_at timestamptz NOT NULL
) WITH (fillfactor = 70);

-- The row of batch 0, which no node writes, says since when usage is counted.
INSERT INTO listedge_usage_writers VALUES ('00000000-0000-0000-0000-000000000000', 0, now());

-- Who did what with the administrative commands, and when. Commands write a row in
-- the transaction of their change.
CREATE TABLE listedge_audit_log (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           timestamptz NOT NULL DEFAULT clock_timestamp(), -- now() is when an import began
    actor        text NOT NULL CHECK (actor <> '' AND char_length(actor) <= 128),
    role         text NOT NULL DEFAULT session_user,
    action       text NOT NULL CHECK (action <> '' AND char_length(action) <= 64),
    workspace_id uuid, -- no foreign key: what was deleted stays in the log
    key_id       uuid,
    details      jsonb NOT NULL DEFAULT '{}' CHECK (octet_length(details::text) <= 8192)
);
CREATE INDEX listedge_audit_log_by_at ON listedge_audit_log (at, id);
CREATE INDEX listedge_audit_log_by_workspace ON listedge_audit_log (workspace_id, at, id) WHERE workspace_id IS NOT NULL;

-- Rows stay as they were written. The triggers also fire for the owner, with
-- session_replication_role = replica, and for a logical subscription, which fires
-- those of rows only. Who owns the table can still drop it or its triggers: see
-- docs/SECURITY.md.
-- +goose StatementBegin
CREATE FUNCTION listedge_audit_log_is_append_only() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'listedge_audit_log is append-only: % is refused', tg_op USING ERRCODE = 'insufficient_privilege';
END
$$;
-- +goose StatementEnd
CREATE TRIGGER listedge_audit_log_append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON listedge_audit_log
    FOR EACH STATEMENT EXECUTE FUNCTION listedge_audit_log_is_append_only();
CREATE TRIGGER listedge_audit_log_rows_append_only BEFORE UPDATE OR DELETE ON listedge_audit_log
    FOR EACH ROW EXECUTE FUNCTION listedge_audit_log_is_append_only();
ALTER TABLE listedge_audit_log ENABLE ALWAYS TRIGGER listedge_audit_log_append_only;
ALTER TABLE listedge_audit_log ENABLE ALWAYS TRIGGER listedge_audit_log_rows_append_only;

-- +goose Down
DROP TABLE IF EXISTS public.listedge_audit_log, public.listedge_key_usage, public.listedge_key_last_used, public.listedge_usage_writers;
DROP FUNCTION IF EXISTS public.listedge_audit_log_is_append_only();
DROP INDEX IF EXISTS public.listedge_api_keys_by_workspace, public.listedge_workspaces_by_tenant;
DROP FUNCTION IF EXISTS public.listedge_search_grams(text, text), public.listedge_name_key(text), public.listedge_fold(text),
    public.listedge_fold_letters(text);
