package page

import (
	"bytes"
	"encoding/binary"
	"testing"

	"listedge/internal/list"
	"listedge/internal/list/listtest"
)

// The key is injective: the query can be read from it. It is the same in each version of the
// program, because nodes of two versions share a Redis.
func FuzzAppendKey(f *testing.F) {
	f.Add("w", false, byte(0), uint64(0), "", "", 50)
	f.Add("a tenant \x00\x01", true, byte(1), uint64(255), "\x00\x01a", "\x01", 1)
	f.Add(string(make([]byte, 200)), true, byte(0), ^uint64(0), string(make([]byte, 127)), string(make([]byte, 300)), 100)
	f.Fuzz(func(t *testing.T, tenant string, contacts bool, order byte, match uint64, search, after string, limit int) {
		q := Query{List: listtest.Items, Tenant: tenant, Order: int(order), Match: match, Search: search,
			After: list.Position(after), Limit: max(1, limit%(MaxLimit+1))}
		if contacts {
			q.List = listtest.Contacts
		}
		rest, ok := bytes.CutPrefix(q.AppendKey([]byte("before")), []byte("before"))
		if !ok {
			t.Fatal("what was there before is lost")
		}
		part := func() (part []byte) {
			n, width := binary.Uvarint(rest)
			part, rest = rest[width:][:n], rest[width:][n:]
			return part
		}
		read := Query{Tenant: string(part())}
		for _, l := range []*list.List{listtest.Items, listtest.Contacts} {
			if bytes.HasPrefix(rest, l.Digest[:]) {
				read.List = l
			}
		}
		rest = rest[len(list.Digest{}):]
		read.Order, read.Limit, read.Match = int(rest[0]), int(rest[1]), binary.BigEndian.Uint64(rest[2:])
		rest = rest[10:]
		read.Search, read.After = string(part()), list.Position(rest)
		if read != q {
			t.Fatalf("%+v is read as %+v", q, read)
		}
	})
}
