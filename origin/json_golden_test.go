package origin

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"regexp"
	"testing"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
)

// Redis keeps rows in JSON, and nodes of two versions share them during an upgrade. So who
// changes the JSON of a row raises magic in cache/redis.go: then nodes do not serve rows in
// the other form. After that, change want.
func TestTheJSONOfRowsInRedisBelongsToTheirMagic(t *testing.T) {
	const want = `lep\x08 22247984fd7b`
	values := map[string]string{"text": "Chai \"20\"\n<é>", "uuid": "0197a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", "numeric": "18.0000", "bool": "t",
		"timestamptz": "2025-05-08 06:13:20.123+00"}
	hash := sha256.New()
	for _, l := range list.BuiltIn().Lists {
		for _, null := range []bool{false, true} {
			var row []string
			for i, field := range l.Fields {
				value := values[l.Columns[i].Base]
				if field.Form == list.Number {
					value = "18.50"
				}
				if null && field.Nullable {
					value = listtest.Null
				}
				row = append(row, l.Columns[i].Name, value)
			}
			made := listtest.Row(l, row...)
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
