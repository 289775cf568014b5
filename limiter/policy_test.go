package limiter

import (
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

func TestPolicyCompilesToTheRationalMeant(t *testing.T) {
	sixty, three := 60.0, 3.0
	for _, c := range []struct {
		rate        float64
		burst, r, p int64
	}{
		{50, 100, 1, 20_000},
		{1, 1, 1, 1_000_000},
		{5 / sixty, 5, 1, 12_000_000},
		{1 / three, 10, 1, 3_000_000},
		{0.1, 1, 1, 10_000_000},
		{0.0833, 5, 833, 10_000_000_000},
		{1.0 / 86400, 1000, 1, 86_400_000_000},
		{1_500_000, 10, 3, 2},
		{999_983.25, 1000, 3_999_933, 4_000_000},
		{1e300, 7, 7, 1}, // full again after every microsecond
		{0, 3, 0, 1},
	} {
		p := policy(t, c.rate, c.burst)
		if p.r != c.r || p.p != c.p {
			t.Errorf("NewPolicy(%v, %d) = %d/%d, want %d/%d", c.rate, c.burst, p.r, p.p, c.r, c.p)
		}
		if p.Rate != c.rate || p.Burst != c.burst {
			t.Errorf("NewPolicy(%v, %d) keeps %v, %d", c.rate, c.burst, p.Rate, p.Burst)
		}
	}
}

func TestPolicyRefusesWhatItCannotKeep(t *testing.T) {
	for _, c := range []struct {
		rate  float64
		burst int64
	}{
		{-1, 1}, {-math.SmallestNonzeroFloat64, 1}, {math.NaN(), 1}, {math.Inf(1), 1}, {math.Inf(-1), 1},
		{1, 0}, {1, -5}, {1, maxUnits + 1}, {1, math.MaxInt64},
		{1, 1 << 40},       // a token would need fewer than 2^12 units, and has 10^6
		{1e-300, 1},        // one token in the life of the universe
		{1.0 / 86400, 1e6}, // 8.64e10 units a token
	} {
		if p, err := NewPolicy(c.rate, c.burst); !errors.Is(err, ErrPolicy) {
			t.Errorf("NewPolicy(%v, %d) = %+v, %v", c.rate, c.burst, p, err)
		}
	}
}

// Whatever the float: bounded, never faster than given, hardly slower.
func TestPolicyInvariants(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	ceiling := big.NewRat(1_000_000_001, 1_000_000_000)
	made := 0
	for range 6_000 {
		rate := math.Exp(random.Float64()*60 - 30)
		burst := int64(math.Exp(random.Float64() * 36))
		if burst < 1 || rate >= float64(burst)*microsPerSecond {
			continue
		}
		p, err := NewPolicy(rate, burst)
		if err != nil {
			continue
		}
		made++
		if p.p < 1 || p.r < 1 || p.r > p.units() || p.units() > maxUnits || p.units()/p.p != burst {
			t.Fatalf("NewPolicy(%v, %d) = %+v breaks its bounds", rate, burst, p)
		}
		exact := new(big.Rat).SetFloat64(rate)
		share := new(big.Rat).Quo(big.NewRat(p.r, p.p), exact.Quo(exact, big.NewRat(microsPerSecond, 1)))
		if share.Cmp(ceiling) > 0 || share.Cmp(big.NewRat(998, 1000)) < 0 {
			t.Fatalf("NewPolicy(%v, %d) hands out %v of the rate", rate, burst, share.FloatString(12))
		}
	}
	if made < 1_500 {
		t.Fatalf("only %d policies could be made", made)
	}
}

// nearestBelow against trying every denominator.
func TestNearestBelowIsTheNearest(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 2_000 {
		x := big.NewRat(random.Int64N(5_000)+1, random.Int64N(5_000)+1)
		limit := random.Int64N(60) + 1
		best := new(big.Rat)
		for den := int64(1); den <= limit; den++ {
			num := new(big.Int).Quo(new(big.Int).Mul(x.Num(), big.NewInt(den)), x.Denom())
			if f := new(big.Rat).SetFrac(num, big.NewInt(den)); f.Cmp(best) > 0 {
				best = f
			}
		}
		if got := nearestBelow(x, big.NewInt(limit)); got.Cmp(best) != 0 {
			t.Fatalf("nearest below %v with denominator <= %d: %v, want %v", x, limit, got, best)
		}
	}
}
