package changefeed

import (
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestPositions(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	wide := func(p Position) *big.Int { // the one number that Redis compares
		return new(big.Int).Or(new(big.Int).Lsh(new(big.Int).SetUint64(p.Term), 64), new(big.Int).SetUint64(p.N))
	}
	for range 10_000 {
		p, q := Position{number(r), number(r)}, Position{number(r), number(r)}
		if p.Compare(q) != wide(p).Cmp(wide(q)) || p.Compare(q) != -q.Compare(p) || p.Compare(p) != 0 {
			t.Fatalf("%s and %s compare as %d", p, q, p.Compare(q))
		}
		if p != (Position{}) && p.Compare(Position{}) <= 0 {
			t.Fatalf("%s is not after the zero position", p)
		}
		if again, err := ParsePosition(p.String()); err != nil || again != p {
			t.Fatalf("%s was read as %s, %v", p, again, err)
		}
	}
	for _, text := range []string{"", "-", "1", "1-", "-1", "1-1-1", "a-1", "1-b", "18446744073709551616-1", "+1-1", " 1-1", "1_0-1"} {
		if p, err := ParsePosition(text); err == nil || p != (Position{}) {
			t.Errorf("%q was read as %s", text, p)
		}
	}
}

// seen is the manual's definition of visibility, word by word.
func seen(s Snapshot, xid uint64) bool {
	switch {
	case xid < s.Xmin:
		return true
	case xid >= s.Xmax:
		return false
	}
	return !slices.Contains(s.Running, xid)
}

func TestSnapshots(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 5_000 {
		s := Snapshot{Xmin: 100 + r.Uint64N(50)}
		s.Xmax = s.Xmin + r.Uint64N(50)
		for x := s.Xmin; x < s.Xmax; x++ {
			if r.IntN(3) == 0 {
				s.Running = append(s.Running, x)
			}
		}
		again, err := ParseSnapshot(s.String())
		if err != nil || again.String() != s.String() {
			t.Fatalf("%s was read as %s, %v", s, again, err)
		}
		for x := uint64(95); x < 205; x++ {
			if again.Sees(x) != seen(s, x) {
				t.Fatalf("%s sees %d: %t", s, x, again.Sees(x))
			}
		}
	}
	for _, text := range []string{"", "1", "1:2", "1:2:3:4", ":2:", "1::", "1:2:,", "1:2:3,", "1:2:x", "-1:2:"} {
		if s, err := ParseSnapshot(text); err == nil {
			t.Errorf("%q was read as %s", text, s)
		}
	}
}
