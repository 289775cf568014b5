package origin

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"regexp"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgtype"

	"listedge/internal/lists"
)

// Redis keeps rows in JSON, and nodes of two versions share them during an upgrade. So who
// changes the JSON of a row raises magic in cache/redis.go: then nodes do not serve rows in
// the other form. After that, change want.
func TestTheJSONOfRowsInRedisBelongsToTheirMagic(t *testing.T) {
	const want = `lep\x07 22247984fd7b`
	id := uuid.MustParse("0197a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b")
	hash := sha256.New()
	for _, c := range lists.All {
		for _, null := range []bool{false, true} {
			var row [][]byte
			for _, column := range c.Listed() {
				value := map[lists.Kind][]byte{
					lists.Text: []byte("Chai \"20\"\n<é>"), lists.UUID: id[:], lists.Decimal: numeric("18.0000"), lists.Number: numeric("18.50"),
					lists.Bool: {1}, lists.Instant: binary.BigEndian.AppendUint64(nil, 800_000_000_123_000)}[column.Kind]
				if null && column.Nullable {
					value = nil
				}
				row = append(row, value)
			}
			made := must1(c.Row(row, 0))
			hash.Write([]byte(made.Text()))
		}
	}
	codec := must1(os.ReadFile("../cache/redis.go"))
	magic := regexp.MustCompile(`magic +=? *"(.*)"`).FindSubmatch(codec)
	if magic == nil {
		t.Fatal("cache/redis.go has no constant magic")
	}
	if is := string(magic[1]) + " " + hex.EncodeToString(hash.Sum(nil)[:6]); is != want {
		t.Errorf("%s, want %s: if the JSON has changed, raise magic in cache/redis.go, and then change want", is, want)
	}
}

// numeric is the number as Postgres sends it in binary.
func numeric(text string) []byte {
	var n pgtype.Numeric
	err := n.Scan(text)
	b, encodeErr := pgtype.NewMap().Encode(pgtype.NumericOID, pgtype.BinaryFormatCode, n, nil)
	if err = errors.Join(err, encodeErr); err != nil {
		panic(err)
	}
	return b
}
