package follower

import (
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestDecimalsAreComparedExactly(t *testing.T) {
	compare := func(a, b string) {
		t.Helper()
		x, _ := new(big.Rat).SetString(a)
		y, _ := new(big.Rat).SetString(b)
		if is, ok := compareDecimals(a, b); !ok || is != x.Cmp(y) {
			t.Fatalf("%.50s and %.50s: %d (%v), want %d", a, b, is, ok, x.Cmp(y))
		}
	}
	special := []string{"0", "-0", "0.0", "0.10", "0.1", "-0.1", "1", "10", "9", "09", "-9", "-10", "1.5", "1.50", "1.05", "-1.5", "-1.05", "2", "100000000000000000000", "99999999999999999999.9"}
	for _, a := range special {
		for _, b := range special {
			compare(a, b)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	digits := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteByte('0' + byte(random.IntN(10)))
		}
		return b.String()
	}
	number := func() string {
		n := 1 + random.IntN(3)
		if random.IntN(10) == 0 {
			n = 1000
		}
		s := digits(n)
		if random.IntN(2) == 0 {
			s = "-" + s
		}
		if random.IntN(2) == 0 {
			s += "." + digits(1+random.IntN(n))
		}
		return s
	}
	for range 20_000 {
		a, b := number(), number()
		switch random.IntN(4) {
		case 0: // that differ late
			b = a[:len(a)-1] + digits(1)
		case 1:
			b = a
			if strings.Contains(b, ".") {
				b += "000"
			}
		}
		compare(a, b)
	}
}

func TestWhatIsNoDecimal(t *testing.T) {
	for _, s := range []string{"", "-", ".", ".5", "NaN", "Infinity", "-Infinity", "1e5", "+1", "1.2.3", "1,5", " 1", "0x1", "--1", "1.-2"} {
		if _, ok := compareDecimals(s, "1"); ok {
			t.Errorf("%q is one", s)
		}
		if _, ok := compareDecimals("1", s); ok {
			t.Errorf("%q is one, on the right", s)
		}
	}
}
