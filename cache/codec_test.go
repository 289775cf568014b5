package cache

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"listedge/cache/freshness"
	"listedge/internal/lists"
)

// sealed gives b a valid magic and checksum.
func sealed(b []byte) []byte {
	copy(b, magic)
	binary.BigEndian.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	return b
}

func TestCodecRoundTrip(t *testing.T) {
	now := time.Now()
	for _, body := range [][]byte{nil, []byte("x"), rows(255), rows(256), rows(20_000), noise(20_000)} {
		for _, next := range []string{"", "cursor"} {
			p := NewEntry(body, next)
			if next != "" { // a client accepted gzip
				p.Deflate()
			}
			q, age, err := decode(p.encode(keyOf("q"), time.Minute, now.Add(-time.Second)), keyOf("q"), 59*time.Second, now)
			if err != nil {
				t.Fatal(err)
			}
			kept, came := q.compressed()
			if wanted, _ := p.compressed(); !bytes.Equal(kept, wanted) || came != (wanted != nil) {
				t.Fatalf("%d bytes, deflated to %d, came back as %d", len(body), len(wanted), len(kept))
			}
			if !bytes.Equal(q.Body, p.Body) || !bytes.Equal(q.Deflate(), p.Deflate()) ||
				q.CRC != p.CRC || q.ETag != p.ETag || q.Next != p.Next {
				t.Fatalf("%d bytes came back as another page", len(body))
			}
			if off := age - time.Second; off < 0 || off > 2*time.Millisecond {
				t.Fatalf("the age is off by %v", off)
			}
		}
	}
}

// extents are of all shapes.
func extents() map[string]*freshness.Extent {
	at := func(key string) freshness.Bound {
		return freshness.Bound{Kind: freshness.At, CreatedAt: -1, NameKey: key, ID: uuid.UUID{1, 2, 3}}
	}
	open := freshness.Bound{Kind: freshness.Open}
	return map[string]*freshness.Extent{
		"a whole list":          {After: open, End: open, Tags: []uint32{1, math.MaxUint32}},
		"an empty list":         {After: open, End: open, Tags: []uint32{}},
		"a page by name":        {Order: lists.ByName, After: at("key"), End: at(""), Tags: make([]uint32, 101)},
		"a page of a search":    {Filter: lists.Low | lists.Goods, Collection: lists.Contacts, Search: "É", After: at(""), End: open, Tags: []uint32{7}},
		"a place nobody knows":  {Order: lists.ByName, Filter: math.MaxUint8, After: open, Tags: []uint32{7}},
		"the longest of keys":   {Order: lists.ByName, After: at(strings.Repeat("x", 255)), End: at(""), Tags: []uint32{}},
		"neither end is known":  {Tags: []uint32{7}},
		"one before everything": {After: open, End: freshness.Bound{Kind: freshness.At, CreatedAt: math.MinInt64}, Tags: []uint32{}},
	}
}

func TestCodecKeepsTheExtent(t *testing.T) {
	key, now := keyOf("q"), time.Now()
	for name, extent := range extents() {
		p := NewEntry(rows(300), "cursor")
		p.Extent = extent
		encoded := p.encode(key, time.Minute, now)
		q, _, err := decode(encoded, key, time.Minute, now)
		if err != nil || !reflect.DeepEqual(q.Extent, extent) {
			t.Errorf("%s: %+v, %v", name, q, err)
		}
	}
	p := NewEntry(rows(300), "cursor")
	p.Extent = &freshness.Extent{After: freshness.Bound{Kind: freshness.At, NameKey: strings.Repeat("x", 256)}}
	if q, _, err := decode(p.encode(key, time.Minute, now), key, time.Minute, now); err != nil || q.Extent.After.NameKey != "" {
		t.Errorf("a key that is too long: %+v, %v", q, err)
	}
}

func TestDecodeRefusesDamagedEntries(t *testing.T) {
	key, now := keyOf("q"), time.Now()
	page := NewEntry(rows(300), "cursor")
	page.Extent = &freshness.Extent{Order: lists.ByName, After: freshness.Bound{Kind: freshness.At, NameKey: "key"}, End: freshness.Bound{Kind: freshness.At}, Tags: []uint32{1}}
	entry := page.encode(key, time.Minute, now)
	if _, _, err := decode(entry, key, time.Minute, now); err != nil {
		t.Fatal(err)
	}
	refused := func(what string, b, key []byte) {
		t.Helper()
		if p, _, err := decode(b, key, time.Minute, now); err != errMalformed || p != nil {
			t.Fatalf("%s: %v, %v", what, p, err)
		}
	}
	for n := range entry {
		refused("truncated", entry[:n:n], key)
		if n >= headerSize {
			refused("truncated with a right checksum", sealed(bytes.Clone(entry[:n])), key)
		}
	}
	for bit := range 8 * len(entry) {
		flipped := bytes.Clone(entry)
		flipped[bit/8] ^= 1 << (bit % 8)
		refused("bit flipped", flipped, key)
	}
	extent := len(page.Extent.Append(nil))
	for at, wrong := range map[int]byte{0: 2, 1: 2, 3: 255, 5: 3, 5 + 1 + 8 + 16: 255, extent - 5: 255} { // order, collection, length of the search, kinds and lengths of bounds
		damaged := bytes.Clone(entry)
		damaged[len(entry)-extent+at] = wrong
		refused(fmt.Sprint("extent with a wrong byte at ", at), sealed(damaged), key)
	}
	refused("longer", append(bytes.Clone(entry), 0), key)
	refused("longer with a right checksum", sealed(append(bytes.Clone(entry), 0)), key)
	refused("nothing", nil, key)
	refused("another key", entry, keyOf("r"))
	refused("another workspace", entry, AppendKey(nil, [16]byte{2}, []byte("q")))
	refused("no key", entry, nil)
	another := bytes.Clone(entry)
	another[3]++ // the checksum does not cover the version
	refused("another version", another, key)
}

func TestDecodeOfHugeLengthsAllocatesNothing(t *testing.T) {
	key, now := keyOf("q"), time.Now()
	for _, length := range []uint64{1 << 20, 1 << 31, 1 << 32, 1 << 40, math.MaxInt64, math.MaxInt64 + 1, math.MaxUint64} {
		b := make([]byte, headerSize)
		b = binary.AppendUvarint(b, length)
		b = sealed(append(b, key...))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := decode(b, key, time.Minute, now)
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; err != errMalformed || grown > 64<<10 {
			t.Errorf("length %d: %v, %d bytes allocated", length, err, grown)
		}
	}
	unending := append(make([]byte, headerSize), bytes.Repeat([]byte{0x80}, 20)...)
	if _, _, err := decode(sealed(unending), key, time.Minute, now); err != errMalformed {
		t.Errorf("a length without end: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	key := keyOf("q")
	f.Add(NewEntry([]byte("body"), "next").encode(key, time.Minute, time.Now()), int64(time.Second), false)
	f.Add(NewEntry(rows(300), "").encode(key, time.Hour, time.Unix(0, 0)), int64(-1), true)
	for _, extent := range extents() {
		p := NewEntry([]byte("body"), "next")
		p.Extent = extent
		f.Add(p.encode(key, time.Minute, time.Now()), int64(time.Second), true)
	}
	f.Add(make([]byte, headerSize), int64(-2), true)
	f.Add([]byte{}, int64(math.MinInt64), true)
	f.Fuzz(func(t *testing.T, b []byte, remaining int64, seal bool) {
		if seal && len(b) >= headerSize {
			b = sealed(bytes.Clone(b))
		}
		now := time.Now()
		p, age, err := decode(b, key, time.Duration(remaining), now)
		if err != nil {
			if p != nil || err != errMalformed {
				t.Fatalf("%v, %v", p, err)
			}
			return
		}
		if age < 0 {
			t.Fatalf("from the future, by %v", -age)
		}
		compressed, _ := p.compressed()
		if len(p.Body)+len(compressed)+len(p.ETag)+len(p.Next) > len(b) || p.Extent != nil && len(p.Extent.Append(nil)) > len(b) {
			t.Fatal("more than there was")
		}
		again, _, err := decode(p.encode(key, time.Minute, now), key, time.Minute, now)
		if err != nil || !bytes.Equal(again.Body, p.Body) || !bytes.Equal(again.Deflate(), p.Deflate()) || again.ETag != p.ETag || again.Next != p.Next ||
			!reflect.DeepEqual(again.Extent, p.Extent) {
			t.Fatalf("does not come back: %v", err)
		}
	})
}

// read is a page's way through Redis, with durations of an exact clock.
type read struct {
	age     time.Duration // of the page when it is read
	late    time.Duration // between the encoding's moment and the SET's taking effect
	writer  time.Duration // by how much the writer's wall clock is ahead
	reader  time.Duration // by how much the reader's is
	expires time.Duration // what PTTL says, where it is not what follows from the above
}

const entryLife = 5*time.Minute + 700*time.Microsecond

// decodedAge is the age that the reader computes for the page.
func (r read) decodedAge(t testing.TB) time.Duration {
	t.Helper()
	born := time.Now()
	remaining := r.expires
	if remaining == 0 {
		// The SET says, in whole milliseconds, what was left when it was sent. Redis
		// counts from when it arrived, by a clock that ticks each millisecond.
		remaining = entryLife.Truncate(redisTick) - (r.age - r.late)
		remaining = (remaining + redisTick - 1).Truncate(redisTick)
	}
	now := born.Add(r.age + r.reader)
	entry := NewEntry([]byte("body"), "").encode(keyOf("q"), entryLife, born.Add(r.writer))
	_, age, err := decode(entry, keyOf("q"), remaining, now)
	if err != nil {
		t.Fatal(err)
	}
	return age
}

func TestDecodedAge(t *testing.T) {
	const s = time.Second
	for what, c := range map[string]struct {
		read
		want time.Duration
	}{
		"read at once":                         {read{}, 0},
		"all is well":                          {read{age: 10 * s}, 10 * s},
		"late SET":                             {read{age: 70 * s, late: 60 * s}, 70 * s},
		"writer ahead":                         {read{age: 10 * s, writer: 3600 * s}, 10 * s},
		"writer behind: too old":               {read{age: 10 * s, writer: -20 * s}, 30 * s},
		"reader ahead: too old":                {read{age: 10 * s, reader: 20 * s}, 30 * s},
		"reader behind":                        {read{age: 10 * s, reader: -3600 * s}, 10 * s},
		"both ahead":                           {read{age: 10 * s, writer: 3600 * s, reader: 3600 * s}, 10 * s},
		"both ahead, late SET":                 {read{age: 70 * s, late: 60 * s, writer: 3600 * s, reader: 3600 * s}, 70 * s},
		"writer ahead, late SET: off by skew":  {read{age: 70 * s, late: 60 * s, writer: 2 * s}, 68 * s},
		"writer ahead, late SET: off by delay": {read{age: 70 * s, late: 1 * s, writer: 3600 * s}, 69 * s},
		"no expiry: older than may be served":  {read{age: 10 * s, expires: -1}, entryLife},
		"no key: older than may be served":     {read{age: 10 * s, expires: -2}, entryLife},
		"no expiry, writer ahead":              {read{age: 10 * s, writer: 3600 * s, expires: -1}, entryLife},
		"expires later than any entry may":     {read{age: 10 * s, expires: 9 * time.Hour}, 10 * s},
		"that, from the future":                {read{age: 10 * s, expires: 9 * time.Hour, writer: 3600 * s}, 0},
	} {
		got := c.decodedAge(t)
		if got < c.want || got > c.want+3*time.Millisecond {
			t.Errorf("%s: age %v, want %v", what, got, c.want)
		}
		if c.expires < 0 && freshness.ByAge(got, 0, entryLife) != freshness.Expired {
			t.Errorf("%s: may be served", what)
		}
	}
}

// The computed age is too low only if the SET was late and the clocks differ, and then at
// most by the smaller of the two.
func TestDecodedAgeIsNeverYoungerThanTheTruth(t *testing.T) {
	random := rand.New(rand.NewPCG(6, 7))
	skew := func() time.Duration {
		return time.Duration(random.Int64N(int64(20*time.Second)) - int64(10*time.Second))
	}
	for range 20_000 {
		r := read{age: time.Duration(random.Int64N(int64(entryLife)))}
		if random.IntN(2) == 0 {
			r.late = time.Duration(random.Int64N(int64(r.age) + 1))
		}
		if random.IntN(2) == 0 {
			r.writer, r.reader = skew(), skew()
		}
		bound := r.age - min(r.late, max(0, r.writer-r.reader))
		if got := r.decodedAge(t); got < bound {
			t.Fatalf("%+v: taken to be %v, is at least %v", r, got, bound)
		}
	}
}
