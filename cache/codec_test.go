package cache

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"listedge/internal/changefeed"
	"listedge/internal/list"
	"listedge/internal/list/listtest"
	"listedge/internal/page"
)

// sealed gives b a valid magic and checksum.
func sealed(b []byte) []byte {
	copy(b, magic)
	binary.BigEndian.PutUint32(b[4:], crc32.ChecksumIEEE(b[8:]))
	return b
}

// pages are of all shapes.
func pages() map[string]*reading {
	long := listtest.Item(1, "description", strings.Repeat("long", 5000))
	row := listtest.Item(2, "name", "é", "type", "GOODS")
	primary := changefeed.ReadPoint{StartedAt: "1700000000.123456", Began: changefeed.Position{Term: 3, N: math.MaxUint64},
		Snapshot: changefeed.Snapshot{Xmin: 7, Xmax: 12, Running: []uint64{7, 9, 11}}}
	return map[string]*reading{
		"by age":         {Read: page.Read{Rows: []list.Row{row}, End: true}},
		"of the primary": {Read: page.Read{Rows: []list.Row{row, long}, At: primary}, epoch: "epoch"},
		"of a standby": {epoch: "epoch", Read: page.Read{Rows: []list.Row{row},
			At: changefeed.ReadPoint{Timeline: "7400000000000000001/1", LSN: 1 << 60, Through: math.MaxUint64}}},
		"an empty list": {Read: page.Read{End: true, At: primary}},
	}
}

func TestCodecRoundTrip(t *testing.T) {
	key, now := []byte("q"), time.Now()
	for name, p := range pages() {
		q, age := decode(p.encode(key, time.Minute, now.Add(-time.Second)), key, 59*time.Second, now)
		if !reflect.DeepEqual(q, p) {
			t.Errorf("%s: %+v", name, q)
		}
		if off := age - time.Second; off < 0 || off > 2*time.Millisecond {
			t.Errorf("%s: the age is off by %v", name, off)
		}
	}
}

func TestDecodeRefusesDamagedEntries(t *testing.T) {
	key, now := []byte("q"), time.Now()
	entry := pages()["by age"].encode(key, time.Minute, now)
	if p, _ := decode(entry, key, time.Minute, now); p == nil {
		t.Fatal("refused")
	}
	refused := func(what string, b, key []byte) {
		t.Helper()
		if p, _ := decode(b, key, time.Minute, now); p != nil {
			t.Fatalf("%s: %v", what, p)
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
	for what, of := range map[string]string{"position": `0,"N"`, "snapshot": `0,"Xmax"`, "end": "true", "number of rows": "\x01\x00\x10"} {
		damaged := bytes.Clone(entry)
		damaged[headerSize+bytes.Index(damaged[headerSize:], []byte(of))] = 'x'
		refused("a wrong "+what+" with a right checksum", sealed(damaged), key)
	}
	refused("longer", append(bytes.Clone(entry), 0), key)
	refused("longer with a right checksum", sealed(append(bytes.Clone(entry), 0)), key)
	refused("another key", entry, []byte("r"))
	another := bytes.Clone(entry)
	another[3]++ // the checksum does not cover the version
	refused("another version", another, key)
}

func TestDecodeOfHugeLengthsAllocatesNothing(t *testing.T) {
	key, now := []byte("q"), time.Now()
	entry := pages()["by age"].encode(key, time.Minute, now)
	head := entry[:bytes.IndexByte(entry, '\n')+2] // up to the number of rows
	for _, length := range []uint64{1 << 20, 1 << 32, math.MaxInt64, math.MaxInt64 + 1, math.MaxUint64} {
		b := sealed(append(binary.AppendUvarint(bytes.Clone(head), length), key...))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p, _ := decode(b, key, time.Minute, now)
		runtime.ReadMemStats(&after)
		if grown := after.TotalAlloc - before.TotalAlloc; p != nil || grown > 64<<10 {
			t.Errorf("length %d: %v, %d bytes allocated", length, p, grown)
		}
	}
}

func FuzzDecode(f *testing.F) {
	key := []byte("q")
	for _, p := range pages() {
		f.Add(p.encode(key, time.Minute, time.Now()), int64(time.Second), true)
	}
	f.Add(make([]byte, headerSize), int64(-2), true)
	f.Add([]byte{}, int64(math.MinInt64), true)
	f.Fuzz(func(t *testing.T, b []byte, remaining int64, seal bool) {
		if seal && len(b) >= headerSize {
			b = sealed(bytes.Clone(b))
		}
		now := time.Now()
		p, age := decode(b, key, time.Duration(remaining), now)
		if p == nil {
			return
		}
		again, _ := decode(p.encode(key, time.Minute, now), key, time.Minute, now)
		if age < 0 || !reflect.DeepEqual(again, p) {
			t.Fatalf("%v old, does not come back: %v", age, again)
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
	entry := pages()["by age"].encode([]byte("q"), entryLife, born.Add(r.writer))
	p, age := decode(entry, []byte("q"), remaining, now)
	if p == nil {
		t.Fatal("refused")
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
		if c.expires < 0 && got < entryLife {
			t.Errorf("%s: may be served", what)
		}
	}
}
