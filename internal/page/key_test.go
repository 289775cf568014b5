package page

import (
	"bytes"
	"encoding/binary"
	"testing"

	"listedge/internal/lists"
)

// The key is injective: the query can be read from it. It is the same in each version of the
// program, because nodes of two versions share a Redis.
func FuzzAppendKey(f *testing.F) {
	f.Add([]byte("w"), byte(0), byte(0), byte(0), "", "", 50)
	f.Add([]byte{1, 15: 2}, byte(1), byte(1), byte(255), "\x00\x01a", "\x01", 1)
	f.Add([]byte{}, byte(1), byte(0), byte(8), string(make([]byte, 127)), string(make([]byte, 300)), 100)
	f.Fuzz(func(t *testing.T, workspace []byte, collection, sort, filter byte, search, after string, limit int) {
		q := Query{Collection: lists.Collection(collection), Sort: lists.Order(sort), Filter: lists.Flags(filter), Search: search,
			After: lists.Position(after), Limit: max(1, limit%(MaxLimit+1))}
		copy(q.Workspace[:], workspace)
		key, ok := bytes.CutPrefix(q.AppendKey([]byte("before")), []byte("before"))
		if !ok {
			t.Fatal("what was there before is lost")
		}
		var read Query
		rest := key[copy(read.Workspace[:], key):]
		part := func() (part []byte) {
			n, width := binary.Uvarint(rest)
			part, rest = rest[width:][:n], rest[width:][n:]
			return part
		}
		scope := part()
		read.Collection, read.Sort, read.Filter, read.Search = lists.Collection(scope[0]), lists.Order(scope[1]), lists.Flags(scope[2]), string(scope[3:])
		read.Limit, read.After = int(part()[0]), lists.Position(part())
		if read != q || len(rest) > 0 {
			t.Fatalf("%+v has the key %x, which reads %+v", q, key, read)
		}
	})
}
