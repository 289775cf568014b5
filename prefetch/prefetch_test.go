package prefetch

import (
	"math/rand/v2"
	"testing"
	"unsafe"
)

const highest = ^uintptr(0)

// Whatever lies there, or does not.
func TestNoAddressFails(t *testing.T) {
	var b [1000]byte
	Memory(unsafe.Pointer(&b[3]), 997)
	Memory(nil, 10)
	for _, at := range []uintptr{0, 1, 4095, highest / 3, highest - 200, highest - 100, highest} {
		for _, bytes := range []uintptr{0, 1, 64, 65, each} {
			fetch(at, bytes)
		}
	}
	var trail Trail
	trail.Follow()
	trail.Leave([4]uintptr{1, 0, highest, highest / 3})
	trail.Follow()
}

// What does not begin where a line does may lie in one more.
func TestAllLinesAreFetched(t *testing.T) {
	for _, c := range []struct{ at, bytes, first, n uintptr }{
		{128, 1, 128, 1}, {128, 64, 128, 1}, {128, 65, 128, 2}, {160, 32, 128, 1}, {160, 33, 128, 2},
		{191, 1, 128, 1}, {160, 128, 128, 3}, {highest, 1, highest - 63, 1}, {highest - 31, 128, highest - 63, 3},
	} {
		if first, n := span(c.at, c.bytes); first != c.first || n != c.n {
			t.Errorf("%d bytes at %d: %d lines from %d, want %d from %d", c.bytes, c.at, n, first, c.n, c.first)
		}
	}
}

func TestATrailIsOfTheLastTime(t *testing.T) {
	var trail Trail
	for _, places := range [][4]uintptr{{1, 2, 3, 4}, {1, 0, 3, 5}, {}} {
		trail.Leave(places)
		for i := range places {
			if is := trail.places[i].Load(); is != places[i] {
				t.Errorf("place %d is %d, want %d", i, is, places[i])
			}
		}
	}
}

// thing is read after the one before it, as parts of a request are.
type thing struct {
	next  *thing
	value [120]byte
}

// BenchmarkChains prints what it costs to read four things one after the other
// that lie anywhere in 256 MB, with and without a trail to them.
func BenchmarkChains(b *testing.B) {
	const chains = 1 << 19
	things := make([][4]thing, chains)
	order := make([][4]int32, chains)
	for level := range 4 {
		for i, p := range rand.Perm(chains) {
			order[i][level] = int32(p)
		}
	}
	trails := make([]Trail, chains)
	for i := range order {
		var places [4]uintptr
		for level := range 4 {
			at := &things[order[i][level]][level]
			places[level] = uintptr(unsafe.Pointer(at))
			if level < 3 {
				at.next = &things[order[i][level+1]][level+1]
			}
		}
		trails[i].Leave(places)
	}
	for _, along := range []bool{false, true} {
		b.Run(map[bool]string{false: "one after the other", true: "along a trail"}[along], func(b *testing.B) {
			sum := 0
			for range b.N {
				i := (rand.N(chains) + sum) % chains // not before the last one was read
				if along {
					trails[i].Follow()
				}
				for at := &things[order[i][0]][0]; at != nil; at = at.next {
					sum += int(at.value[100])
				}
			}
			if sum != 0 {
				b.Fatal(sum)
			}
		})
	}
}
