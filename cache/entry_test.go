package cache_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"listedge/cache"
)

// gzipMember is the body of a compressed response: the entry's blocks, then the tail as a
// final stored block, and the checksum of both.
func gzipMember(body, blocks []byte, crc uint32, tail string) []byte {
	b := []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}
	b = append(append(b, blocks...), 1)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(tail)))
	b = binary.LittleEndian.AppendUint16(b, ^uint16(len(tail)))
	b = append(b, tail...)
	b = binary.LittleEndian.AppendUint32(b, crc32.Update(crc, crc32.IEEETable, []byte(tail)))
	return binary.LittleEndian.AppendUint32(b, uint32(len(body)+len(tail)))
}

// items is a body like that of a page of items.
func items(n int) []byte {
	random := rand.New(rand.NewPCG(5, uint64(n)))
	b := []byte(`{"data":[`)
	for len(b) < n {
		b = fmt.Appendf(b, `{"id":"%08x-aaaa-4bbb-8ccc-%012x","name":"Article %d","type":"GOODS","costPrice":"%d.50",`+
			`"taxable":true,"createdAt":"2026-01-02T03:04:05.678Z"},`,
			random.Uint32(), random.Uint64()>>16, random.IntN(1000), random.IntN(1000))
	}
	return b[:n]
}

// noise is a body that cannot be compressed.
func noise(n int) []byte {
	b := make([]byte, n)
	random := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = random.Read(b)
	return b
}

// goGunzip decodes one member. It fails if anything follows the member.
func goGunzip(b []byte) ([]byte, error) {
	in := bytes.NewReader(b)
	r, err := gzip.NewReader(in)
	if err != nil {
		return nil, err
	}
	r.Multistream(false)
	out, err := io.ReadAll(r)
	if err == nil && in.Len() > 0 {
		err = fmt.Errorf("%d bytes behind the member", in.Len())
	}
	return out, err
}

func TestAnEntryIsOneGzipMember(t *testing.T) {
	c := open(t, cache.Options{TTL: time.Hour})
	empty := forward(t, c, queryOf("empty"), brings("")).Entry
	const tail = `,"requestId":"k3v9x2m1q0-17"}`
	for _, n := range []int{0, 1, 255, 256, 65_535, 65_536, 200_000} {
		for kind, row := range map[string][]byte{"items": items(n), "noise": noise(n)} {
			p := forward(t, c, queryOf(fmt.Sprint(kind, n)), brings(string(row[:max(0, n-len(bodyOf(empty)))]))).Entry
			body := []byte(bodyOf(p))
			d := p.Deflate()
			if pays := kind == "items" && n >= 256; pays != (d != nil) {
				t.Errorf("%d bytes of %s: %d compressed", n, kind, len(d))
			}
			if d == nil {
				continue
			}
			for _, tail := range []string{"", tail, strings.Repeat("x", 4096)} {
				name := fmt.Sprintf("%s-%d-%d", kind, n, len(tail))
				want := append(bytes.Clone(body), tail...)
				member := gzipMember(body, d, p.CRC, tail)
				if got, err := goGunzip(member); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%s: %d bytes, want %d: %v", name, len(got), len(want), err)
				}
			}
		}
	}
}

// Concurrent requests get the same blocks.
func TestAnEntryIsCompressedOnce(t *testing.T) {
	p := forward(t, open(t, cache.Options{TTL: time.Hour}), queryOf("q"), brings(string(items(20_000)))).Entry
	var got [8][]byte
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() { got[i] = p.Deflate() })
	}
	all.Wait()
	for _, d := range got {
		if len(d) == 0 || &d[0] != &got[0][0] {
			t.Fatal("compressed more than once, or not at all")
		}
	}
}
